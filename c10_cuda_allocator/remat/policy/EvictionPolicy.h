#pragma once

#include "../Export.h"
#include "../Stats.h"
#include "../graph/OpGraph.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace c10::remat {

// One that nothing will run again, as those of the backward pass.
struct UnrecordedOp {
  const char* name;
  CostNs cost;
  const VersionIds& inputs;
};

class PlanExchange;
struct PlacementPlan;
class ProgramLog;

// How much the program would lose by evicting a version.
//
// The score of a version is `weight / staleness` (or `weight` alone where
// `uses_staleness()` is false); the victim is the evictable version with the
// lowest score, the one created first among equals. That split lets
// VictimIndex find it without looking at all of them.
//
// A policy reads the graph and changes nothing in it: same facts, same score.
// What it remembers between calls only saves it from computing again.
class REMAT_API EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  virtual const char* name() const = 0;

  // The part of the score that does not change with time. Positive, finite.
  // `id` is resident and has a producer.
  virtual double weight(const OpGraph& graph, VersionId id) const = 0;

  virtual bool uses_staleness() const {
    return true;
  }

  // For now `weight` alone is the score, and grows with time.
  virtual bool ranks_anew() const {
    return false;
  }

  // Should `id` be kept while anything else can be evicted? A preference
  // only: it ends before an out-of-memory error is raised.
  virtual bool is_locked(const OpGraph& /*graph*/, VersionId /*id*/) const {
    return false;
  }
  // Changes whenever a version that was locked may be so no more, and when
  // scores of a policy that ranks anew are not to be compared with those
  // before.
  virtual uint64_t lock_epoch() const {
    return 0;
  }

  // No storage owns `id`: a replay made it, or its owner has just died. Should
  // its bytes stay, for what may be replayed from it, until memory is short?
  virtual bool keeps(
      const OpGraph& /*graph*/,
      VersionId /*id*/,
      bool /*was_replayed*/) const {
    return false;
  }

  // May blocks be moved instead of evicted, where that is cheaper?
  virtual bool moves_blocks() const {
    return true;
  }

  // Appends the versions whose weight may have fallen since the last call, so
  // that they are not passed over. Growth needs no report.
  virtual void drain_lowered(
      const OpGraph& /*graph*/,
      std::vector<VersionId>& /*lowered*/) {}

  // The engine tells of each change after making it. A version with a producer
  // is in use while it is resident and owned, or kept. What it is for a while
  // during a replay, without an owner, is no change.
  virtual void on_captured(const OpGraph& /*graph*/, OpId /*op*/) {}
  // The program has run an op that is not recorded.
  virtual void on_unrecorded(
      const OpGraph& /*graph*/,
      const UnrecordedOp& /*op*/) {}
  // Read outside any op.
  virtual void on_read(const OpGraph& /*graph*/, VersionId /*id*/) {}
  // No longer in use, whatever the reason: eviction, being written over, or
  // the death of its owner while its record is kept.
  virtual void on_evicted(const OpGraph& /*graph*/, VersionId /*id*/) {}
  // In use again.
  virtual void on_rematerialized(const OpGraph& /*graph*/, VersionId /*id*/) {}
  // An op has run again, whatever becomes of its results.
  virtual void on_replayed(CostNs /*cost*/) {}
  // `id` is about to be forgotten or to become a leaf. Its producer may be
  // gone.
  virtual void on_forgotten(const OpGraph& /*graph*/, VersionId /*id*/) {}
  // The record of `op` is forgotten: no version names it any more. Its slot
  // and those of its inputs are still there.
  virtual void on_op_forgotten(
      const OpGraph& /*graph*/,
      OpId /*op*/,
      const OpRecord& /*record*/) {}
  // `op` lives on without one of its outputs, which was not in use.
  virtual void on_output_forgotten(const OpGraph& /*graph*/, OpId /*op*/) {}
  // Bytes between usage and budget now; unlimited budgets report the maximum.
  virtual void on_residual(Bytes /*residual*/, Bytes /*budget*/) {}
  // Memory is short: what is in the graph can have so many bytes now, the rest
  // of the budget is in other use.
  virtual void on_pressure(Bytes /*room*/) {}

  // Where the bytes of the next op should lie, if that is planned; see Note
  // [Two ends].
  virtual void plan_placement(PlacementPlan& /*plan*/) const {}

  // Will `id` be evicted in any case before it is read again, so that evicting
  // it now loses nothing?
  virtual bool lets_go(const OpGraph& /*graph*/, VersionId /*id*/) const {
    return false;
  }

  // Where the engine writes down what the program does, if the policy wants to
  // know that now. May change with each `on_captured`: the op is the first that
  // goes to the new one.
  virtual ProgramLog* program_log() {
    return nullptr;
  }
  // Where plans are made for the policy, if it follows any.
  virtual std::shared_ptr<PlanExchange> plan_exchange() {
    return nullptr;
  }
  virtual PlanCensus plan_census() const {
    return {};
  }
};

} // namespace c10::remat
