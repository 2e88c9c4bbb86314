#include "DtePolicy.h"

#include <algorithm>
#include <cmath>

namespace c10::remat {

double DtePolicy::weight(const OpGraph& graph, VersionId id) const {
  const bool is_known = id.index < recomputed_.size() &&
      recomputed_[id.index].created == graph[id].created;
  const uint32_t times = is_known ? recomputed_[id.index].times : 0;
  return base_.weight(graph, id) * std::pow(kPenalty, times);
}

bool DtePolicy::keeps(const OpGraph& graph, VersionId id, bool was_replayed)
    const {
  return base_.keeps(graph, id, was_replayed);
}

void DtePolicy::drain_lowered(
    const OpGraph& graph,
    std::vector<VersionId>& lowered) {
  base_.drain_lowered(graph, lowered);
}

void DtePolicy::on_captured(const OpGraph& graph, OpId op) {
  base_.on_captured(graph, op);
}

void DtePolicy::on_evicted(const OpGraph& graph, VersionId id) {
  base_.on_evicted(graph, id);
}

void DtePolicy::on_rematerialized(const OpGraph& graph, VersionId id) {
  base_.on_rematerialized(graph, id);
  if (id.index >= recomputed_.size()) {
    recomputed_.resize(std::max<size_t>(id.index + 1, 2 * recomputed_.size()));
  }
  Recomputed& recomputed = recomputed_[id.index];
  if (recomputed.created != graph[id].created) {
    recomputed = {graph[id].created, 0};
  }
  ++recomputed.times;
}

void DtePolicy::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    const OpRecord& record) {
  base_.on_op_forgotten(graph, op, record);
}

void DtePolicy::on_output_forgotten(const OpGraph& graph, OpId op) {
  base_.on_output_forgotten(graph, op);
}

} // namespace c10::remat
