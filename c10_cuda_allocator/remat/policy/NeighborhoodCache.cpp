#include "NeighborhoodCache.h"

#include <algorithm>

namespace c10::remat {

CostNs NeighborhoodCache::cost(const OpGraph& graph, VersionId id) const {
  if (id.index >= memos_.size()) {
    memos_.resize(std::max<size_t>(id.index + 1, 2 * memos_.size()));
  }
  Memo& memo = memos_[id.index];
  if (!memo.is_valid || memo.created != graph[id].created) {
    memo.created = graph[id].created;
    memo.cost = walk_.cost(graph, id, side_);
    memo.is_valid = true;
  }
  memo.was_asked = true;
  return memo.cost.is_complete
      ? memo.cost.cost
      : std::max(memo.cost.cost, estimate_.cost(graph, id));
}

void NeighborhoodCache::drain_lowered(std::vector<VersionId>& lowered) {
  lowered_.drain(lowered);
}

void NeighborhoodCache::on_captured(const OpGraph& graph, OpId op) {
  estimate_.on_captured(graph, op);
  if (has_absent_output(graph, op)) {
    invalidate_inputs(graph, graph[op].inputs, /*lowered=*/false);
  }
}

void NeighborhoodCache::on_evicted(const OpGraph& graph, VersionId id) {
  estimate_.on_evicted(graph, id);
  invalidate_around(graph, id, /*lowered=*/false);
}

void NeighborhoodCache::on_rematerialized(const OpGraph& graph, VersionId id) {
  estimate_.on_rematerialized(graph, id);
  invalidate_around(graph, id, /*lowered=*/true);
}

void NeighborhoodCache::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    const OpRecord& record) {
  estimate_.on_op_forgotten(graph, op, record.sequence);
  invalidate_inputs(graph, record.inputs, /*lowered=*/true);
}

void NeighborhoodCache::on_output_forgotten(const OpGraph& graph, OpId op) {
  estimate_.on_output_forgotten(graph, op);
  invalidate_inputs(graph, graph[op].inputs, /*lowered=*/true);
}

void NeighborhoodCache::invalidate(VersionId id, bool lowered) {
  if (id.index >= memos_.size()) {
    return;
  }
  Memo& memo = memos_[id.index];
  memo.is_valid = false;
  // A version that nobody asked about has no weight that could be wrong.
  if (lowered && memo.was_asked) {
    memo.was_asked = false;
    lowered_.add(id);
  }
}

void NeighborhoodCache::invalidate_around(
    const OpGraph& graph,
    VersionId id,
    bool lowered) {
  affected_.clear();
  walk_.find_affected(graph, id, affected_);
  for (const VersionId found : affected_) {
    invalidate(found, lowered);
  }
}

void NeighborhoodCache::invalidate_inputs(
    const OpGraph& graph,
    const std::vector<VersionId>& inputs,
    bool lowered) {
  for (const VersionId input : inputs) {
    if (is_absent(graph[input])) {
      invalidate_around(graph, input, lowered);
    } else {
      invalidate(input, lowered);
    }
  }
}

} // namespace c10::remat
