#pragma once

#include "Neighborhood.h"
#include "NeighborhoodEstimate.h"
#include "VersionSet.h"

#include <cstdint>
#include <vector>

namespace c10::remat {

// Costs of neighborhoods, remembered until something in them changes.
//
// A neighborhood too large for Neighborhood's bounds costs what its explored
// part does or what NeighborhoodEstimate says, whichever is more. What is
// remembered of versions further from a change than
// Neighborhood::kMaxAffectedOps records may be stale until they come up.
//
// A change is only noted. What it affects is found when a cost is next asked
// for, for all changes since then at once: while memory is ample that is
// never, and a long replay walks the graph once.
class NeighborhoodCache {
 public:
  explicit NeighborhoodCache(Neighborhood::Side side) : side_(side) {}

  // `id` is in use and has a producer.
  CostNs cost(const OpGraph& graph, VersionId id) const;

  // As in EvictionPolicy.
  void drain_lowered(const OpGraph& graph, std::vector<VersionId>& lowered);
  void on_captured(const OpGraph& graph, OpId op);
  void on_evicted(const OpGraph& graph, VersionId id);
  void on_rematerialized(const OpGraph& graph, VersionId id);
  void on_op_forgotten(const OpGraph& graph, OpId op, const OpRecord& record);
  void on_output_forgotten(const OpGraph& graph, OpId op);

 private:
  struct Memo {
    uint64_t created = 0; // of the version: slots are reused
    Neighborhood::Cost cost;
    bool is_valid = false;
    bool was_asked = false; // since it was last reported as lowered
  };

  // Forgets what the noted changes may have made wrong.
  void catch_up(const OpGraph& graph) const;
  void invalidate_around(
      const OpGraph& graph,
      VersionSet& changed,
      bool lowered) const;

  Neighborhood::Side side_;
  NeighborhoodEstimate estimate_;
  // What follows only saves computing again, or is scratch.
  mutable Neighborhood walk_;
  mutable std::vector<Memo> memos_; // by VersionId::index
  mutable VersionSet grown_; // changes that raise the costs around them
  mutable VersionSet shrunk_; // changes that lower them
  mutable VersionSet lowered_; // to be reported
  mutable std::vector<VersionId> changed_; // scratch
  mutable std::vector<VersionId> affected_; // scratch
};

} // namespace c10::remat
