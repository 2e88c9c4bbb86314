// For work on policies: `remat_simulate [--dtr] POLICIES RATIOS TRACE...`, with
// lists separated by commas. One line per point. "learning" is `planned` as it
// runs in an engine, and wants traces of several iterations: `--times N` makes
// those of one.

#include "../policy/PolicyRegistry.h"
#include "Planner.h"
#include "Simulation.h"

#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

// "planned:300": by the best of so many candidates.
c10::remat::SimulationResult planned(
    const c10::remat::Workload& workload,
    const std::string& policy,
    c10::remat::Bytes budget) {
  return c10::remat::Planner(workload, budget)
      .improve(std::stoul(policy.substr(policy.find(':') + 1)))
      .result;
}

} // namespace

int main(int argc, char** argv) {
  using namespace c10::remat;
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool as_dtr = !arguments.empty() && arguments[0] == "--dtr";
  if (as_dtr) {
    arguments.erase(arguments.begin());
  }
  size_t times = 1;
  if (arguments.size() > 2 && arguments[0] == "--times") {
    times = std::stoul(arguments[1]);
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  if (arguments.size() < 3) {
    std::fprintf(
        stderr,
        "usage: remat_simulate [--dtr] [--times N] POLICIES RATIOS TRACE...\n");
    return 2;
  }
  try {
    for (size_t i = 2; i < arguments.size(); ++i) {
      Workload workload = read_workload(arguments[i]);
      if (times > 1) {
        workload = repeated(workload, times);
      }
      const Bytes peak = workload.peak();
      for (const std::string& policy : split(arguments[0])) {
        for (const std::string& ratio : split(arguments[1])) {
          const auto budget =
              static_cast<Bytes>(static_cast<double>(peak) * std::stod(ratio));
          const auto start = std::chrono::steady_clock::now();
          const SimulationResult result = as_dtr
              ? simulate_as_dtr(workload, policy, budget)
              : policy.rfind("planned:", 0) == 0
              ? planned(workload, policy, budget)
              : policy == "untuned"
              ? simulate(workload, make_policy("planned"), budget)
              : policy == "learning" ? simulate_learning(workload, budget)
                                     : simulate(workload, policy, budget);
          const std::chrono::duration<double> seconds =
              std::chrono::steady_clock::now() - start;
          constexpr const char* kOutcomes[] = {
              "pass", "OOM", "thrash", "interrupted"};
          std::printf(
              "%s %s %s %s %.17g recompute %lld evictions %llu replays %llu "
              "deepest %llu peak %llu in %.3f s\n",
              arguments[i].c_str(),
              policy.c_str(),
              ratio.c_str(),
              kOutcomes[static_cast<int>(result.outcome)],
              result.overhead(),
              static_cast<long long>(result.recompute),
              static_cast<unsigned long long>(result.evictions),
              static_cast<unsigned long long>(result.replays),
              static_cast<unsigned long long>(result.deepest_replay),
              static_cast<unsigned long long>(result.peak),
              seconds.count());
        }
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "remat_simulate: %s\n", error.what());
    return 1;
  }
  return 0;
}
