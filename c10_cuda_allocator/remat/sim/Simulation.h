#pragma once

#include "../Config.h"
#include "Workload.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10::remat {

class EvictionPolicy;

struct SimulationResult {
  enum class Outcome {
    Completed,
    OutOfMemory, // an op's operands and results did not fit
    Thrashed, // stopped: recomputing took as long as the workload
    Interrupted,
  };
  Outcome outcome = Outcome::Completed;
  CostNs base_cost = 0; // of the workload's ops
  CostNs elapsed = 0; // cost of what ran, replays included
  CostNs recompute = 0; // of the replays
  uint64_t evictions = 0;
  uint64_t replays = 0; // ops run again
  uint64_t deepest_replay = 0; // the most of these for one access
  Bytes peak = 0;
  uint32_t peak_place = 0; // of the op then, or the next; see Future

  bool is_feasible() const {
    return outcome == Outcome::Completed;
  }
  // Time over that without a budget; up to where it stopped if not feasible.
  double overhead() const {
    return base_cost == 0
        ? 1
        : static_cast<double>(elapsed) / static_cast<double>(base_cost);
  }
};

struct SimulationLimits {
  CostNs most_recompute = -1; // stops above; negative: the workload's cost
  // Asked before each op and replay; false ends it. Null: nobody is.
  const std::function<bool()>* may_go_on = nullptr;
};

// Runs `workload` on an Engine within `budget`, with a clock that only ops
// advance. Throws UsageError for an unknown policy. `planned` knows the
// workload as if the last iteration had been the same; see Planner.
REMAT_API SimulationResult
simulate(const Workload& workload, const std::string& policy, Bytes budget);
REMAT_API SimulationResult simulate(
    const Workload& workload,
    std::unique_ptr<EvictionPolicy> policy,
    Bytes budget,
    const SimulationLimits& limits = {});

// Runs `workload`, which is of several iterations, with a policy that learns
// while it runs. Plans that it asks for are there at the next iteration.
REMAT_API SimulationResult
simulate_learning(const Workload& workload, Bytes budget);

// The same under the rules of DTR's published simulator instead of an engine;
// see Note [What DTR's simulator does]. Throws UsageError for a policy that it
// does not have.
REMAT_API SimulationResult simulate_as_dtr(
    const Workload& workload,
    const std::string& policy,
    Bytes budget);
REMAT_API const std::vector<std::string>& dtr_policy_names();

} // namespace c10::remat
