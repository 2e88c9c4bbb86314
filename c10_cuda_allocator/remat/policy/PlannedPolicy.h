#pragma once

#include "DtrPolicy.h"
#include "EvictionPolicy.h"
#include "NextUsePolicy.h"

#include <memory>

namespace c10::remat {

// Training repeats: expects of each iteration what the last one did, and evicts
// by NextUsePolicy while that holds, by DTR where it does not.
//
// Note [Iterations]
// An iteration begins after an update of parameters (StorageVersion::epoch). An
// optimizer updates one parameter after the other, with few recorded ops
// between: only a stretch of kShortest recorded ops without an update is one,
// from the first op after the last update on. Each op is compared with the one
// at its place in the last iteration, by name, operands and sizes. From the
// first that differs on until the next iteration nothing is expected.
class REMAT_API PlannedPolicy final : public EvictionPolicy {
 public:
  static constexpr uint32_t kShortest = 16;

  PlannedPolicy();

  const char* name() const override {
    return "planned";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
  bool ranks_anew() const override {
    return is_following();
  }
  // Scores of two iterations do not compare.
  uint64_t lock_epoch() const override {
    return changes_;
  }
  bool keeps(const OpGraph& graph, VersionId id, bool was_replayed)
      const override;
  void drain_lowered(const OpGraph& graph, std::vector<VersionId>& lowered)
      override;

  void on_captured(const OpGraph& graph, OpId op) override;
  void on_read(const OpGraph& graph, VersionId id) override;
  void on_evicted(const OpGraph& graph, VersionId id) override;
  void on_rematerialized(const OpGraph& graph, VersionId id) override;
  void on_op_forgotten(const OpGraph& graph, OpId op, const OpRecord& record)
      override;
  void on_output_forgotten(const OpGraph& graph, OpId op) override;

  // Is the last iteration being repeated?
  bool is_following() const {
    return iteration_->is_on_course();
  }

 private:
  void begin_iteration(const OpGraph& graph);

  DtrPolicy fallback_;
  std::shared_ptr<const Future> last_; // iteration; empty before the second
  std::shared_ptr<const NextUsePolicy::Tuning> tuning_;
  std::unique_ptr<NextUsePolicy> iteration_; // this one
  uint64_t epoch_ = 0;
  uint64_t changes_ = 0; // of what decides
};

} // namespace c10::remat
