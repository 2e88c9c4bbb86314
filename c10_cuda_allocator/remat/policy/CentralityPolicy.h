#pragma once

#include "Centrality.h"
#include "DtrPolicy.h"

#include <limits>
#include <vector>

namespace c10::remat {

// T-Control: keep what much replay goes through.
//
// Source: T-Control, ASPLOS 2026 (the idea: betweenness over shortest
// computation paths on the traced graph, locks scaled by live residual
// memory). Score = (cost of the neighborhood / size)^kDamping
// x (1 + kGain x centrality) / staleness: what counts is the order, so that it
// is staleness that is damped, to the power of 1 / kDamping. In addition the
// most central versions are locked, as many as fit in kLockShare of the bytes
// that were lately free within the budget: under lasting pressure that is none,
// since locks alone gain nothing and a lock on what is evicted forces long
// replays. Only what is in use is ever asked about, so only that is locked.
//
// Centrality is computed again whenever half as many records were captured as
// there were, so its cost per record is constant; never while the budget is
// unlimited.
class REMAT_API CentralityPolicy final : public DtrPolicy {
 public:
  static constexpr double kGain = 0.3;
  static constexpr double kDamping = 1.7;
  static constexpr double kLockShare = 0.5;

  const char* name() const override {
    return "centrality";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
  bool is_locked(const OpGraph& graph, VersionId id) const override;
  uint64_t lock_epoch() const override {
    return lock_epoch_;
  }
  void drain_lowered(const OpGraph& graph, std::vector<VersionId>& lowered)
      override;

  void on_captured(const OpGraph& graph, OpId op) override;
  void on_residual(Bytes residual, Bytes budget) override;

 private:
  struct Ranked {
    double centrality;
    Bytes total; // of this and all before it
  };

  void recompute(const OpGraph& graph);
  void set_locks();

  Centrality centrality_;
  size_t captured_ = 0; // since the last recompute
  size_t recompute_at_ = 64;
  bool is_limited_ = false;
  double residual_ = 0; // decaying mean, in bytes
  double residual_of_locks_ = 0; // at which the locks were set
  std::vector<Ranked> ranking_; // most central first
  double lowest_locked_ = std::numeric_limits<double>::infinity();
  uint64_t lock_epoch_ = 0;
  std::vector<VersionId> lowered_;
};

} // namespace c10::remat
