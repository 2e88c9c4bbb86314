#include "DtrPolicy.h"

#include <algorithm>

namespace c10::remat {

double DtrPolicy::weight(const OpGraph& graph, VersionId id) const {
  const CostNs cost = std::max<CostNs>(neighborhoods_.cost(graph, id), 1);
  return static_cast<double>(cost) / static_cast<double>(graph[id].size);
}

bool DtrPolicy::keeps(const OpGraph& graph, VersionId id, bool was_replayed)
    const {
  return was_replayed && has_absent_reader(graph, id);
}

void DtrPolicy::drain_lowered(
    const OpGraph& graph,
    std::vector<VersionId>& lowered) {
  neighborhoods_.drain_lowered(graph, lowered);
}

void DtrPolicy::on_captured(const OpGraph& graph, OpId op) {
  neighborhoods_.on_captured(graph, op);
}

void DtrPolicy::on_evicted(const OpGraph& graph, VersionId id) {
  neighborhoods_.on_evicted(graph, id);
}

void DtrPolicy::on_rematerialized(const OpGraph& graph, VersionId id) {
  neighborhoods_.on_rematerialized(graph, id);
}

void DtrPolicy::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    const OpRecord& record) {
  neighborhoods_.on_op_forgotten(graph, op, record);
}

void DtrPolicy::on_output_forgotten(const OpGraph& graph, OpId op) {
  neighborhoods_.on_output_forgotten(graph, op);
}

} // namespace c10::remat
