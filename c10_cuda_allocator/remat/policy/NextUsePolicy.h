#pragma once

#include "Future.h"
#include "FutureRecorder.h"
#include "NeighborhoodPolicy.h"
#include "Tuning.h"
#include "VersionSet.h"

#include <memory>

namespace c10::remat {

// Knows what the program will do:
// score = cost^a / (size^b x distance^c) x bias of the value, where the cost is
// that of the version and its absent ancestors, and the distance is the time
// until it is needed.
//
// Note [When a version is needed]
// A version is needed at its next use, and when an absent descendant is that
// will be replayed from it. What nothing will need goes first.
//
// The distance shrinks at the same pace for all versions, so that scores do not
// keep their order.
class REMAT_API NextUsePolicy final : public NeighborhoodPolicy {
 public:
  // What became of a value.
  struct Past {
    uint32_t returns = 0; // how often it came back
    uint32_t evicted_at = 0; // before the first of these: place of the next op
  };
  using Pasts = std::vector<Past>; // by value

  // `future` begins where the policy starts to be told of ops. `pasts`, which
  // may be null, must outlive the policy.
  NextUsePolicy(
      std::shared_ptr<const Future> future,
      std::shared_ptr<const Tuning> tuning,
      Pasts* pasts = nullptr)
      : NeighborhoodPolicy(Neighborhood::Side::Ancestors),
        future_(std::move(future)),
        tuning_(std::move(tuning)),
        pasts_(pasts) {}

  // Has the program done what the future says, as far as it got?
  bool is_on_course() const {
    return is_on_course_;
  }
  // The next op is the first of `future`.
  void restart(
      std::shared_ptr<const Future> future,
      std::shared_ptr<const Tuning> tuning);
  // From now on `future`, which begins with what the program has done.
  void expect(
      std::shared_ptr<const Future> future,
      std::shared_ptr<const Tuning> tuning);
  // Of all that is expected.
  Ticks length() const {
    return future_->length();
  }
  FutureRecorder& recorder() {
    return recorder_;
  }

  const char* name() const override {
    return "next_use";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
  bool ranks_anew() const override {
    return true;
  }
  bool keeps(const OpGraph& graph, VersionId id, bool was_replayed)
      const override;
  void drain_lowered(const OpGraph& graph, std::vector<VersionId>& lowered)
      override;
  void plan_placement(PlacementPlan& plan) const override;
  bool lets_go(const OpGraph& graph, VersionId id) const override;

  void on_captured(const OpGraph& graph, OpId op) override;
  void on_unrecorded(const OpGraph& graph, const UnrecordedOp& op) override;
  void on_read(const OpGraph& graph, VersionId id) override;
  void on_evicted(const OpGraph& graph, VersionId id) override;
  void on_rematerialized(const OpGraph& graph, VersionId id) override;

 private:
  // Null: nobody wants to know, or it is not of this stretch.
  Past* past_of(const OpGraph& graph, VersionId id);
  // The last op was the one at this place.
  void check_course(uint32_t place);
  // The place at which `id` is next needed.
  uint32_t next_need(const OpGraph& graph, VersionId id) const;

  std::shared_ptr<const Future> future_;
  std::shared_ptr<const Tuning> tuning_;
  Pasts* pasts_;
  FutureRecorder recorder_;
  bool is_on_course_ = true;
  VersionSet read_; // to be reported
  mutable std::vector<VersionId> reached_; // scratch
  mutable std::vector<uint32_t> marks_; // scratch, by VersionId::index
  mutable uint32_t mark_ = 0;
};

} // namespace c10::remat
