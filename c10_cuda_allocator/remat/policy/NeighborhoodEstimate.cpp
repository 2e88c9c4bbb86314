#include "NeighborhoodEstimate.h"

#include "Neighborhood.h"

#include <algorithm>
#include <array>
#include <utility>

namespace c10::remat {

namespace {

// A set that a version touches through more than this many is counted again.
constexpr size_t kRootsRemembered = 16;

} // namespace

CostNs NeighborhoodEstimate::cost(const OpGraph& graph, VersionId id) const {
  std::array<uint32_t, kRootsRemembered> seen{};
  size_t seen_count = 0;
  CostNs total = 0;
  const auto add_set = [&](uint32_t root) {
    if (root == kNone ||
        std::find(seen.begin(), seen.begin() + seen_count, root) !=
            seen.begin() + seen_count) {
      return;
    }
    if (seen_count < seen.size()) {
      seen[seen_count++] = root;
    }
    total += elements_[root].sum;
  };
  const StorageVersion& version = graph[id];
  const uint32_t own = root_of(graph, version.producer);
  if (own == kNone) {
    total += graph[version.producer].cost;
  }
  add_set(own);
  for (const VersionId input : graph[version.producer].inputs) {
    if (is_absent(graph[input])) {
      add_set(root_of(graph, graph[input].producer));
    }
  }
  const size_t readers = std::min(version.readers.size(), kMaxReaders);
  for (size_t i = 0; i < readers; ++i) {
    add_set(root_of(graph, version.readers[i]));
  }
  return total;
}

void NeighborhoodEstimate::on_captured(const OpGraph& graph, OpId op) {
  // Whatever had the slot before is gone.
  leave(op);
  if (has_absent_output(graph, op)) {
    add(graph, op);
    join_neighbors(graph, op);
  }
}

void NeighborhoodEstimate::on_evicted(const OpGraph& graph, VersionId id) {
  const OpId op = graph[id].producer;
  if (!op) {
    return;
  }
  if (root_of(graph, op) == kNone) {
    leave(op);
    add(graph, op);
  }
  join_neighbors(graph, op);
}

void NeighborhoodEstimate::on_rematerialized(
    const OpGraph& graph,
    VersionId id) {
  if (const OpId op = graph[id].producer) {
    leave_if_present(graph, op);
  }
}

void NeighborhoodEstimate::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    uint64_t sequence) {
  if (op.index < members_.size() && members_[op.index].sequence == sequence) {
    leave(op);
    rebuild_if_worn(graph);
  }
}

void NeighborhoodEstimate::on_output_forgotten(const OpGraph& graph, OpId op) {
  leave_if_present(graph, op);
}

void NeighborhoodEstimate::check_invariants() const {
  std::vector<Element> expected(elements_.size());
  size_t count = 0;
  for (const Member& member : members_) {
    if (member.element != kNone) {
      Element& root = expected[find(member.element)];
      ++root.members;
      root.sum += member.cost;
      ++count;
    }
  }
  REMAT_ASSERT(count == member_count_);
  for (uint32_t i = 0; i < elements_.size(); ++i) {
    if (elements_[i].parent == i) {
      REMAT_ASSERT(elements_[i].members == expected[i].members);
      REMAT_ASSERT(elements_[i].sum == expected[i].sum);
    }
  }
}

uint32_t NeighborhoodEstimate::find(uint32_t element) const {
  while (elements_[element].parent != element) {
    Element& here = elements_[element];
    here.parent = elements_[here.parent].parent;
    element = here.parent;
  }
  return element;
}

uint32_t NeighborhoodEstimate::root_of(const OpGraph& graph, OpId op) const {
  if (op.index >= members_.size()) {
    return kNone;
  }
  const Member& member = members_[op.index];
  return member.element == kNone || member.sequence != graph[op].sequence
      ? kNone
      : find(member.element);
}

void NeighborhoodEstimate::join(uint32_t a, uint32_t b) {
  if (a == b) {
    return;
  }
  if (elements_[a].members < elements_[b].members) {
    std::swap(a, b);
  }
  elements_[b].parent = a;
  elements_[a].members += elements_[b].members;
  elements_[a].sum += elements_[b].sum;
}

void NeighborhoodEstimate::add(const OpGraph& graph, OpId op) {
  if (op.index >= members_.size()) {
    members_.resize(std::max<size_t>(op.index + 1, 2 * members_.size()));
  }
  const auto element = static_cast<uint32_t>(elements_.size());
  const OpRecord& record = graph[op];
  elements_.push_back({element, 1, record.cost});
  members_[op.index] = {element, record.sequence, record.cost};
  ++member_count_;
}

void NeighborhoodEstimate::join_neighbors(const OpGraph& graph, OpId op) {
  const auto join_with = [&](OpId other) {
    const uint32_t root = root_of(graph, other);
    if (root != kNone) {
      join(root, root_of(graph, op));
    }
  };
  for (const VersionId input : graph[op].inputs) {
    if (is_absent(graph[input])) {
      join_with(graph[input].producer);
    }
  }
  for (const VersionId output : graph[op].outputs) {
    if (!output || !is_absent(graph[output])) {
      continue;
    }
    const auto& readers = graph[output].readers;
    const size_t count = std::min(readers.size(), kMaxReaders);
    for (size_t i = 0; i < count; ++i) {
      join_with(readers[i]);
    }
  }
}

void NeighborhoodEstimate::leave(OpId op) {
  if (op.index >= members_.size() || members_[op.index].element == kNone) {
    return;
  }
  Member& member = members_[op.index];
  Element& root = elements_[find(member.element)];
  root.sum -= member.cost;
  --root.members;
  member = {};
  --member_count_;
  ++departures_;
}

void NeighborhoodEstimate::leave_if_present(const OpGraph& graph, OpId op) {
  if (!has_absent_output(graph, op)) {
    leave(op);
    rebuild_if_worn(graph);
  }
}

// See Note [Splitting sets].
void NeighborhoodEstimate::rebuild_if_worn(const OpGraph& graph) {
  if (departures_ < std::max(member_count_, kRebuildAfter)) {
    return;
  }
  departures_ = 0;
  elements_.clear();
  std::vector<OpId> ops;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    const OpId op{i};
    if (members_[i].element == kNone) {
      continue;
    }
    const bool is_current =
        graph[op].alive && graph[op].sequence == members_[i].sequence;
    members_[i] = {};
    if (is_current && has_absent_output(graph, op)) {
      ops.push_back(op);
    }
  }
  member_count_ = 0;
  for (const OpId op : ops) {
    add(graph, op);
    join_neighbors(graph, op);
  }
}

} // namespace c10::remat
