// Prints what the core costs: one captured op, and one victim choice among
// many storages, with the bookkeeping that an eviction brings. Then how much
// the policies make a simulated training step recompute.
//
//   build/core/remat_benchmark

#include "../PolicyBench.h"
#include "../SimProgram.h"

#include <c10/remat/evict/WindowChooser.h>
#include <c10/remat/policy/LruPolicy.h>
#include <c10/remat/policy/NextUsePolicy.h>
#include <c10/remat/policy/PlanExchange.h>
#include <c10/remat/policy/PolicyRegistry.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace c10::remat {
namespace {

using Clock = std::chrono::steady_clock;

double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
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
  void set_version(void* holder, VersionId id) noexcept override {
    *static_cast<VersionId*>(holder) = id;
  }
  VersionId version_of(void* holder) const noexcept override {
    return *static_cast<const VersionId*>(holder);
  }
  void disown(StorageVersion&) noexcept override {}
  void forget(StorageVersion&) noexcept override {}
  Bytes usage() const override {
    return 0;
  }
  std::unique_ptr<Buffer> copy(const StorageVersion&) override {
    return nullptr;
  }
  std::vector<std::unique_ptr<Buffer>> replay(
      const ReplayRequest& request) override {
    return std::vector<std::unique_ptr<Buffer>>(request.outputs.size());
  }
};

// Steps of a training loop: `kDepth` ops that keep their outputs, then as many
// that read two of them each and let them go, and an update of parameters. With
// `logs`, each step is logged for a planner.
double ns_per_captured_op(const std::string& policy, bool logs = false) {
  constexpr int kDepth = 1000;
  constexpr int kSteps = 40;
  Times steps;
  NoDevice device;
  Config config;
  config.policy = policy;
  Engine engine(config, device, device, device);
  if (logs) {
    engine.plan_exchange()->open();
  }
  const auto payload = std::make_shared<SimPayload>(0);
  std::deque<VersionId> storages; // the holders; addresses stay
  const auto op = [&](const std::vector<VersionId*>& operands) {
    Holders holders;
    for (VersionId* const operand : operands) {
      holders.push_back(operand);
    }
    OpCapture capture;
    Writes writes;
    engine.begin_op(holders, capture.inputs, writes);
    storages.emplace_back();
    capture.fresh.push_back({4096, &storages.back()});
    capture.cost = 1000;
    capture.payload = payload;
    engine.end_op(std::move(capture));
    return &storages.back();
  };
  VersionId weight;
  engine.add_leaf(4096, &weight);
  for (int step = 0; step < kSteps; ++step) {
    if (logs) {
      engine.set_budget(Bytes{1} << (32 + step % 2)); // which wants a plan each
      engine.relieve_pressure(0);
    }
    const auto start = Clock::now();
    std::vector<VersionId*> kept{op({&weight})};
    while (kept.size() < kDepth) {
      kept.push_back(op({kept.back(), &weight}));
    }
    VersionId* gradient = op({kept.back()});
    while (!kept.empty()) {
      VersionId* const next = op({gradient, kept.back()});
      engine.storage_died(*gradient);
      engine.storage_died(*kept.back());
      kept.pop_back();
      gradient = next;
    }
    engine.storage_died(*gradient);
    OpCapture update;
    Write write;
    write.overwrites_all = true;
    write.is_parameter = true;
    update.writes = {write};
    engine.begin_op({&weight}, update.inputs, update.writes);
    engine.end_op(std::move(update));
    steps.samples.push_back(ns_since(start) / (2.0 * kDepth));
    storages.clear();
  }
  return steps.quantile(logs ? 0.75 : 0.5); // every other step is logged
}

struct ChoiceTimes {
  Times choice;
  Times bookkeeping; // of one eviction and one return
};

// `count` resident storages of mixed size and cost, each made from up to two
// of the last 64; then evictions, each followed by a return, a tenth evicted.
std::vector<VersionId> build(
    PolicyBench& bench,
    size_t count,
    std::mt19937& random) {
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
  return made;
}

// As if it had all happened before, and each value were read once more later.
std::unique_ptr<EvictionPolicy> next_use_policy(size_t count) {
  LruPolicy policy;
  PolicyBench bench(policy);
  std::mt19937 random(1);
  build(bench, count, random);
  FutureRecorder recorder;
  std::vector<OpId> ops;
  bench.graph.for_each_op([&](OpId op) { ops.push_back(op); });
  for (const OpId op : ops) {
    recorder.captured(bench.graph, op);
  }
  Future future = recorder.take();
  for (size_t i = 0; i < count; ++i) {
    Future::Op op = future.ops[i];
    op.start = future.length();
    op.value_count = 0;
    future.ops.push_back(op);
  }
  for (Future::Value& value : future.values) {
    value.uses.push_back(static_cast<uint32_t>(count + random() % count));
  }
  return std::make_unique<NextUsePolicy>(
      std::make_shared<Future>(std::move(future)), std::make_shared<Tuning>());
}

ChoiceTimes time_choices(EvictionPolicy& policy, size_t count) {
  constexpr int kChoices = 2000;
  PolicyBench bench(policy);
  policy.on_residual(0, 1 << 20);
  std::mt19937 random(1);
  const std::vector<VersionId> made = build(bench, count, random);
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

// Forward and backward of a network whose layers are three ops of unlike cost
// and size; with `skips`, layer i also reads what layer kLayers - i does.
void train_step(SimProgram& program, bool skips) {
  constexpr size_t kLayers = 48;
  using Var = SimProgram::Var;
  struct Step {
    std::vector<Var> inputs;
    Var output;
    CostNs cost;
    Bytes size;
  };
  std::vector<Step> tape;
  const auto op = [&](std::vector<Var> inputs, Bytes size, CostNs cost) {
    const Var output = program.op1(inputs, size, cost);
    tape.push_back({std::move(inputs), output, cost, size});
    return output;
  };
  std::vector<Var> outputs;
  Var x = program.leaf(64);
  for (size_t i = 0; i < kLayers; ++i) {
    std::vector<Var> inputs{x};
    if (skips && i > kLayers / 2) {
      inputs.push_back(outputs[kLayers - i]);
    }
    const Var wide = op(inputs, 256, 20000); // a matrix product
    const Var active = op({wide}, 256, 2000); // pointwise
    x = op({active, x}, 64, 10000);
    outputs.push_back(x);
  }
  Var gradient = program.op1({x}, 64, 1000);
  while (!tape.empty()) {
    const Step step = tape.back();
    tape.pop_back();
    std::vector<Var> inputs = step.inputs;
    inputs.push_back(gradient);
    const Var next = program.op1(inputs, 64, 2 * step.cost);
    program.drop(gradient);
    program.drop(step.output);
    gradient = next;
  }
  program.drop(gradient);
}

// Recompute cost over that of the step itself; negative where memory ran out.
double extra_compute(const std::string& policy, double share, bool skips) {
  Config config;
  config.policy = policy;
  SimProgram unlimited(Bytes{1} << 40, config);
  train_step(unlimited, skips);
  config.budget = static_cast<Bytes>(share * unlimited.device.peak);
  SimProgram program(config.budget, config);
  try {
    train_step(program, skips);
  } catch (const std::runtime_error&) {
    return -1;
  }
  double own = 0;
  for (int layer = 0; layer < 48; ++layer) {
    own += 3 * (20000 + 2000 + 10000);
  }
  return program.engine.counters().recompute_ns / own;
}

void print_extra_compute() {
  constexpr double kShares[] = {0.8, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1};
  std::printf("extra compute at budgets of 80, 60, 40, 30, 20, 15, 10 %%\n");
  for (const bool skips : {false, true}) {
    std::printf("  %s\n", skips ? "with long skips" : "a chain of layers");
    for (const std::string& name : policy_names()) {
      std::printf("    %-12s", name.c_str());
      for (const double share : kShares) {
        std::printf(" %7.3f", extra_compute(name, share, skips));
      }
      std::printf("\n");
    }
  }
}

// One segment in which every third block is free and every tenth stays.
void print_window_choices() {
  std::printf("window choice, ns: median, 99 %%\n");
  for (const size_t count : {1000, 10000, 100000}) {
    std::mt19937 random(11);
    PricedSegment segment;
    segment.serves_request = true;
    for (size_t i = 0; i < count; ++i) {
      const double cost = i % 10 == 9 ? PricedBlock::kBlocked
          : i % 3 == 0                ? 0.0
                                      : random() % 1000;
      segment.blocks.push_back({1 + random() % 64, cost});
    }
    const std::vector<PricedSegment> segments{segment};
    Times times;
    for (int i = 0; i < 200; ++i) {
      const auto start = Clock::now();
      const auto chosen = choose_windows(segments, 100, 1u << 30).windows;
      times.samples.push_back(ns_since(start));
      REMAT_ASSERT(!chosen.empty());
    }
    std::printf(
        "  %7zu blocks %8.0f %8.0f\n",
        count,
        times.quantile(0.5),
        times.quantile(0.99));
  }
}

int run() {
  print_window_choices();
  print_extra_compute();
  std::printf("captured op, ns: unlimited budget\n");
  for (const std::string& name : policy_names()) {
    std::printf("  %-12s %8.0f\n", name.c_str(), ns_per_captured_op(name));
  }
  std::printf(
      "  %-12s %8.0f\n", "with a log", ns_per_captured_op("planned", true));
  std::printf(
      "victim choice, ns: median, 99 %%; one eviction and one return, ns: "
      "median, 99 %%\n");
  std::vector<std::string> names = policy_names();
  names.emplace_back("next uses"); // planned, while it follows
  for (const std::string& name : names) {
    for (const size_t count : {1000, 10000, 100000}) {
      const auto policy =
          name == "next uses" ? next_use_policy(count) : make_policy(name);
      ChoiceTimes times = time_choices(*policy, count);
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
