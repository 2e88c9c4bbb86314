#include "DtePolicy.h"

#include <algorithm>
#include <cmath>

namespace c10::remat {

double DtePolicy::weight(const OpGraph& graph, VersionId id) const {
  const bool is_known = id.index < recomputed_.size() &&
      recomputed_[id.index].created == graph[id].created;
  const uint32_t times = is_known ? recomputed_[id.index].times : 0;
  return DtrEqPolicy::weight(graph, id) * std::pow(kPenalty, times);
}

void DtePolicy::on_rematerialized(const OpGraph& graph, VersionId id) {
  DtrEqPolicy::on_rematerialized(graph, id);
  if (id.index >= recomputed_.size()) {
    recomputed_.resize(std::max<size_t>(id.index + 1, 2 * recomputed_.size()));
  }
  Recomputed& recomputed = recomputed_[id.index];
  if (recomputed.created != graph[id].created) {
    recomputed = {graph[id].created, 0};
  }
  ++recomputed.times;
}

} // namespace c10::remat
