// Prints what the core costs: one captured op, and one victim choice among
// many storages, with the bookkeeping that an eviction brings.
//
//   build/core/remat_benchmark

#include "../PolicyBench.h"
#include "../SimDevice.h"

#include <c10/remat/policy/PolicyRegistry.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace c10::remat {
namespace {

using Clock = std::chrono::steady_clock;

double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start)
      .count();
}

// In ns. Not means: those tell of whatever else the machine was doing.
struct Times {
  std::vector<double> samples;

  double quantile(double share) {
    const auto at = samples.begin() +
        static_cast<std::ptrdiff_t>(share * (samples.size() - 1.0));
    std::nth_element(samples.begin(), at, samples.end());
    return *at;
  }
};

// Ports that do nothing, so that only the engine is timed.
class NoDevice : public StoragePort, public DevicePort, public ReplayPort {
 public:
  ~NoDevice() override = default;
  void release(StorageVersion&) noexcept override {}
  void adopt(StorageVersion&, std::unique_ptr<Buffer>) noexcept override {}
  void disown(StorageVersion&) noexcept override {}
  void forget(StorageVersion&) noexcept override {}
  Bytes usage() const override {
    return 0;
  }
  std::vector<std::unique_ptr<Buffer>> replay(
      const ReplayRequest& request) override {
    return std::vector<std::unique_ptr<Buffer>>(request.outputs.size());
  }
};

// Steps of a training loop: `kDepth` ops that keep their outputs, then as many
// that read two of them each and let them go.
double ns_per_captured_op(const std::string& policy) {
  constexpr int kDepth = 1000;
  constexpr int kSteps = 40;
  Times steps;
  NoDevice device;
  Config config;
  config.policy = policy;
  Engine engine(config, device, device, device);
  const auto payload = std::make_shared<SimPayload>(0);
  const auto op = [&](std::vector<VersionId> inputs) {
    engine.begin_op(inputs, {});
    OpCapture capture;
    capture.inputs = std::move(inputs);
    capture.fresh.push_back({4096, nullptr});
    capture.cost = 1000;
    capture.payload = payload;
    return engine.end_op(std::move(capture))[0];
  };
  const VersionId weight = engine.add_leaf(4096, nullptr);
  for (int step = 0; step < kSteps; ++step) {
    const auto start = Clock::now();
    std::vector<VersionId> kept{op({weight})};
    while (kept.size() < kDepth) {
      kept.push_back(op({kept.back(), weight}));
    }
    VersionId gradient = op({kept.back()});
    while (!kept.empty()) {
      const VersionId next = op({gradient, kept.back()});
      engine.storage_died(gradient);
      engine.storage_died(kept.back());
      kept.pop_back();
      gradient = next;
    }
    engine.storage_died(gradient);
    steps.samples.push_back(ns_since(start) / (2.0 * kDepth));
  }
  return steps.quantile(0.5);
}

struct ChoiceTimes {
  Times choice;
  Times bookkeeping; // of one eviction and one return
};

// `count` resident storages of mixed size and cost, each made from up to two
// of the last 64; then evictions, each followed by a return, a tenth evicted.
ChoiceTimes time_choices(const std::string& name, size_t count) {
  constexpr int kChoices = 2000;
  const auto policy = make_policy(name);
  PolicyBench bench(*policy);
  policy->on_residual(0, 1 << 20);
  std::mt19937 random(1);
  std::vector<VersionId> made{bench.leaf(1)};
  const auto recent = [&] {
    const size_t back = 1 + random() % std::min<size_t>(made.size(), 64);
    return made[made.size() - back];
  };
  for (size_t i = 0; i < count; ++i) {
    std::vector<VersionId> inputs{recent()};
    if (const VersionId other = recent(); other != inputs[0]) {
      inputs.push_back(other);
    }
    made.push_back(bench.op1(
        1000 << (random() % 8), inputs, Bytes{256} << (random() % 12)));
  }
  std::vector<VersionId> evicted;
  const auto evict_next = [&] {
    const VersionId victim = bench.index.choose(bench.now, true);
    bench.evict(victim);
    evicted.push_back(victim);
  };
  for (size_t i = 0; i < count / 10; ++i) {
    evict_next();
  }
  ChoiceTimes times;
  for (int i = 0; i < kChoices; ++i) {
    bench.now += 1000;
    for (int k = 0; k < 4; ++k) {
      bench.access(made[random() % made.size()]);
    }
    auto start = Clock::now();
    const VersionId victim = bench.index.choose(bench.now, false);
    times.choice.samples.push_back(ns_since(start));
    start = Clock::now();
    bench.evict(victim);
    std::swap(evicted[random() % evicted.size()], evicted.back());
    bench.rematerialize(evicted.back());
    times.bookkeeping.samples.push_back(ns_since(start));
    evicted.back() = victim;
  }
  return times;
}

int run() {
  std::printf("captured op, ns: unlimited budget\n");
  for (const std::string& name : policy_names()) {
    std::printf("  %-12s %8.0f\n", name.c_str(), ns_per_captured_op(name));
  }
  std::printf(
      "victim choice, ns: median, 99 %%; one eviction and one return, ns: "
      "median, 99 %%\n");
  for (const std::string& name : policy_names()) {
    for (const size_t count : {1000, 10000, 100000}) {
      ChoiceTimes times = time_choices(name, count);
      std::printf(
          "  %-12s %7zu storages %8.0f %8.0f %8.0f %8.0f\n",
          name.c_str(),
          count,
          times.choice.quantile(0.5),
          times.choice.quantile(0.99),
          times.bookkeeping.quantile(0.5),
          times.bookkeeping.quantile(0.99));
    }
  }
  return 0;
}

} // namespace
} // namespace c10::remat

int main() {
  return c10::remat::run();
}
