#include "DtrEqPolicy.h"

#include "Neighborhood.h"

#include <algorithm>

namespace c10::remat {

double DtrEqPolicy::weight(const OpGraph& graph, VersionId id) const {
  const CostNs cost = std::max<CostNs>(estimate_.cost(graph, id), 1);
  return static_cast<double>(cost) / static_cast<double>(graph[id].size);
}

bool DtrEqPolicy::keeps(const OpGraph& graph, VersionId id, bool was_replayed)
    const {
  return was_replayed && has_absent_reader(graph, id);
}

void DtrEqPolicy::drain_lowered(
    const OpGraph& /*graph*/,
    std::vector<VersionId>& lowered) {
  lowered_.drain(lowered);
}

void DtrEqPolicy::on_captured(const OpGraph& graph, OpId op) {
  estimate_.on_captured(graph, op);
}

void DtrEqPolicy::on_evicted(const OpGraph& graph, VersionId id) {
  estimate_.on_evicted(graph, id);
}

void DtrEqPolicy::on_rematerialized(const OpGraph& graph, VersionId id) {
  estimate_.on_rematerialized(graph, id);
  report_neighbors(graph, id);
}

void DtrEqPolicy::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    const OpRecord& record) {
  estimate_.on_op_forgotten(graph, op, record.sequence);
  lowered_.add(record.inputs);
}

void DtrEqPolicy::on_output_forgotten(const OpGraph& graph, OpId op) {
  estimate_.on_output_forgotten(graph, op);
  lowered_.add(graph[op].inputs);
}

void DtrEqPolicy::report_neighbors(const OpGraph& graph, VersionId id) {
  const StorageVersion& version = graph[id];
  if (version.producer) {
    lowered_.add(graph[version.producer].inputs);
  }
  const size_t readers =
      std::min(version.readers.size(), NeighborhoodEstimate::kMaxReaders);
  for (size_t i = 0; i < readers; ++i) {
    lowered_.add(graph[version.readers[i]].outputs);
  }
}

} // namespace c10::remat
