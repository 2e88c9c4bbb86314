#include "PlanSearch.h"

#include "../Trace.h"
#include "../policy/DtrPolicy.h"
#include "Planner.h"
#include "TraceWorkload.h"

#include <algorithm>

namespace c10::remat {

namespace {

using Outcome = SimulationResult::Outcome;

// Do both name the same values by the same numbers?
bool is_alike(const Future& a, const Future& b) {
  return a.ops.size() == b.ops.size() &&
      std::equal(
             a.values.begin(),
             a.values.end(),
             b.values.begin(),
             b.values.end(),
             [](const Future::Value& x, const Future::Value& y) {
               return x.maker == y.maker && x.size == y.size;
             });
}

// If neither gets through, the one that gets further.
bool is_better(const SimulationResult& a, const SimulationResult& b) {
  if (a.is_feasible() != b.is_feasible()) {
    return a.is_feasible();
  }
  return a.is_feasible() ? a.recompute < b.recompute
                         : a.elapsed - a.recompute > b.elapsed - b.recompute;
}

} // namespace

std::optional<PlanAnswer> search_plan(
    const PlanRequest& request,
    const std::function<bool()>* may_go_on) {
  PlanAnswer answer;
  answer.iteration = request.iteration;
  answer.budget = request.budget;
  const Workload workload = workload_of(request.program, "the last iteration");
  SimulationLimits limits;
  limits.may_go_on = may_go_on;
  Foresight foresight = foresee(workload, may_go_on);
  const bool is_same = is_alike(*foresight.future, *request.future);
  if (may_go_on != nullptr && !(*may_go_on)()) {
    return std::nullopt;
  }
  if (!is_same) {
    return answer;
  }
  const SimulationResult online =
      simulate(workload, std::make_unique<DtrPolicy>(), request.room, limits);
  foresight.future = request.future; // costs are those that were measured
  Planner planner(workload, request.room, std::move(foresight), may_go_on);
  const Plan& plan = planner.improve(Planner::kCandidates);
  if (plan.tuning == nullptr || (may_go_on != nullptr && !(*may_go_on)())) {
    return std::nullopt;
  }
  answer.is_found = true;
  answer.candidates = plan.simulated + 1;
  if (!is_better(online, plan.result)) {
    auto tuning = std::make_shared<Tuning>(*plan.tuning);
    tuning->foreseen = planner.foreseen();
    answer.tuning = std::move(tuning);
  }
  return answer;
}

} // namespace c10::remat
