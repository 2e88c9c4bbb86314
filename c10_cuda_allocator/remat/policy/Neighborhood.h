#pragma once

#include "../graph/OpGraph.h"

#include <cstdint>
#include <vector>

namespace c10::remat {

// Would have to be replayed before it can be read: evicted, or an intermediate
// that nobody owns. A leaf never is.
inline bool is_absent(const StorageVersion& version) {
  return version.producer && !is_in_use(version);
}

bool has_absent_output(const OpGraph& graph, OpId op);
// Something absent was made from `id`.
bool has_absent_reader(const OpGraph& graph, VersionId id);

// What evicting a version would cost to undo, found by walking the graph.
//
// Note [Neighborhood]
// The neighborhood of a version v is what comes back together with it: absent
// ancestors, reached from v through absent versions only, that must be replayed
// to replay v; and absent descendants, reached the same way, whose own replay
// needs v. Its cost is that of their op records and of v's own, each record
// once however many outputs it has.
//
// Walks are breadth first and end at kMaxOps records or kMaxLinks links, so
// that a choice never hangs on the size of what is evicted; `is_complete` says
// whether the cost is the whole of it.
class Neighborhood {
 public:
  static constexpr size_t kMaxOps = 64;
  static constexpr size_t kMaxLinks = 1024;
  static constexpr size_t kMaxAffectedOps = 128;

  enum class Side { Ancestors, Both };

  struct Cost {
    CostNs cost = 0;
    bool is_complete = true;
  };

  // `id` has a producer.
  Cost cost(const OpGraph& graph, VersionId id, Side side);

  // Appends to `affected` the versions in use, in whose neighborhood one of
  // `changed` is, or was before it came back, and those of `changed` that are
  // in use; to within kMaxAffectedOps records for each, in each direction.
  void find_affected(
      const OpGraph& graph,
      const std::vector<VersionId>& changed,
      std::vector<VersionId>& affected);

 private:
  void start();
  // True the first time since `start`.
  bool mark(OpId op);

  std::vector<uint32_t> marks_; // by OpId::index
  uint32_t current_mark_ = 0;
  std::vector<OpId> ops_; // scratch
  std::vector<VersionId> versions_; // scratch
};

} // namespace c10::remat
