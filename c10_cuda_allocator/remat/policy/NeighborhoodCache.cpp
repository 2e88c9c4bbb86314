#include "NeighborhoodCache.h"

#include <algorithm>

namespace c10::remat {

CostNs NeighborhoodCache::cost(const OpGraph& graph, VersionId id) const {
  catch_up(graph);
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

void NeighborhoodCache::drain_lowered(
    const OpGraph& graph,
    std::vector<VersionId>& lowered) {
  catch_up(graph);
  lowered_.drain(lowered);
}

void NeighborhoodCache::on_captured(const OpGraph& graph, OpId op) {
  estimate_.on_captured(graph, op);
  if (has_absent_output(graph, op)) {
    grown_.add(graph[op].inputs);
  }
}

void NeighborhoodCache::on_evicted(const OpGraph& graph, VersionId id) {
  estimate_.on_evicted(graph, id);
  grown_.add(id);
}

void NeighborhoodCache::on_rematerialized(const OpGraph& graph, VersionId id) {
  estimate_.on_rematerialized(graph, id);
  shrunk_.add(id);
}

void NeighborhoodCache::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    const OpRecord& record) {
  estimate_.on_op_forgotten(graph, op, record.sequence);
  shrunk_.add(record.inputs);
}

void NeighborhoodCache::on_output_forgotten(const OpGraph& graph, OpId op) {
  estimate_.on_output_forgotten(graph, op);
  shrunk_.add(graph[op].inputs);
}

void NeighborhoodCache::catch_up(const OpGraph& graph) const {
  if (!grown_.empty()) {
    invalidate_around(graph, grown_, /*lowered=*/false);
  }
  if (!shrunk_.empty()) {
    invalidate_around(graph, shrunk_, /*lowered=*/true);
  }
}

void NeighborhoodCache::invalidate_around(
    const OpGraph& graph,
    VersionSet& changed,
    bool lowered) const {
  changed_.clear();
  affected_.clear();
  changed.drain(changed_);
  walk_.find_affected(graph, changed_, affected_);
  for (const VersionId found : affected_) {
    if (found.index >= memos_.size()) {
      continue;
    }
    Memo& memo = memos_[found.index];
    memo.is_valid = false;
    // A version that nobody asked about has no weight that could be wrong.
    if (lowered && memo.was_asked) {
      memo.was_asked = false;
      lowered_.add(found);
    }
  }
}

} // namespace c10::remat
