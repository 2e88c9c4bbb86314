#pragma once

#include "../graph/OpGraph.h"

#include <cstdint>
#include <vector>

namespace c10::remat {

// The cost of neighborhoods in near constant time, too high rather than too
// low: absent op records that are linked, in any direction, are one set with
// one sum, kept by union-find.
//
// Note [Splitting sets]
// Union-find cannot split. A record that is replayed takes its cost out of its
// set and leaves (arXiv 2006.09616), but those that it held
// together stay one set, and such errors grow. So after as many departures as
// there are members (and at least kRebuildAfter), all sets are built anew from
// the graph: exact again, for constant amortized time.
class NeighborhoodEstimate {
 public:
  static constexpr size_t kRebuildAfter = 256;
  static constexpr size_t kMaxReaders = 64; // looked at per version

  // The cost of `id`'s own record and of the sets that touch it; `id` has a
  // producer.
  CostNs cost(const OpGraph& graph, VersionId id) const;

  // As the events of EvictionPolicy.
  void on_captured(const OpGraph& graph, OpId op);
  void on_evicted(const OpGraph& graph, VersionId id);
  void on_rematerialized(const OpGraph& graph, VersionId id);
  void on_op_forgotten(const OpGraph& graph, OpId op, uint64_t sequence);
  void on_output_forgotten(const OpGraph& graph, OpId op);

  size_t element_count() const {
    return elements_.size();
  }
  // Throws std::logic_error if a sum is not that of its set's members.
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Element {
    uint32_t parent;
    uint32_t members = 0; // of a root's set
    CostNs sum = 0; // of a root's set
  };
  struct Member {
    uint32_t element = kNone; // none: not absent
    uint64_t sequence = 0; // of the record: slots are reused
    CostNs cost = 0;
  };

  uint32_t find(uint32_t element) const;
  // The root of `op`'s set; none if it is in no set.
  uint32_t root_of(const OpGraph& graph, OpId op) const;
  void join(uint32_t a, uint32_t b);
  void add(const OpGraph& graph, OpId op);
  void join_neighbors(const OpGraph& graph, OpId op);
  void leave(OpId op);
  void leave_if_present(const OpGraph& graph, OpId op);
  void rebuild_if_worn(const OpGraph& graph);

  mutable std::vector<Element> elements_; // paths are compressed by queries
  std::vector<Member> members_; // by OpId::index
  size_t member_count_ = 0;
  size_t departures_ = 0; // since the last rebuild
};

} // namespace c10::remat
