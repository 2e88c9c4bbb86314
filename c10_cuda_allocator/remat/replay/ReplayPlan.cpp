#include "ReplayPlan.h"

#include <algorithm>
#include <unordered_set>

namespace c10::remat {

ReplayPlan make_replay_plan(
    const OpGraph& graph,
    const std::vector<VersionId>& targets) {
  ReplayPlan plan;
  std::unordered_set<OpId> planned;
  std::vector<VersionId> missing;
  for (const VersionId target : targets) {
    if (!graph[target].resident) {
      missing.push_back(target);
    }
  }
  while (!missing.empty()) {
    const OpId producer = graph[missing.back()].producer;
    missing.pop_back();
    REMAT_ASSERT(producer);
    if (!planned.insert(producer).second) {
      continue;
    }
    plan.ops.push_back(producer);
    for (const VersionId input : graph[producer].inputs) {
      if (!graph[input].resident) {
        missing.push_back(input);
      }
    }
  }
  std::sort(plan.ops.begin(), plan.ops.end(), [&](OpId a, OpId b) {
    return graph[a].sequence < graph[b].sequence;
  });
  return plan;
}

} // namespace c10::remat
