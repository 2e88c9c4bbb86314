#include "NeighborhoodPolicy.h"

namespace c10::remat {

void NeighborhoodPolicy::drain_lowered(
    const OpGraph& graph,
    std::vector<VersionId>& lowered) {
  neighborhoods_.drain_lowered(graph, lowered);
}

void NeighborhoodPolicy::on_captured(const OpGraph& graph, OpId op) {
  neighborhoods_.on_captured(graph, op);
}

void NeighborhoodPolicy::on_evicted(const OpGraph& graph, VersionId id) {
  neighborhoods_.on_evicted(graph, id);
}

void NeighborhoodPolicy::on_rematerialized(const OpGraph& graph, VersionId id) {
  neighborhoods_.on_rematerialized(graph, id);
}

void NeighborhoodPolicy::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    const OpRecord& record) {
  neighborhoods_.on_op_forgotten(graph, op, record);
}

void NeighborhoodPolicy::on_output_forgotten(const OpGraph& graph, OpId op) {
  neighborhoods_.on_output_forgotten(graph, op);
}

} // namespace c10::remat
