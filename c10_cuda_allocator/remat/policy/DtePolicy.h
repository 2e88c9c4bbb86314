#pragma once

#include "DtrEqPolicy.h"
#include "EvictionPolicy.h"

#include <cstdint>
#include <vector>

namespace c10::remat {

// MegEngine: DTR with estimated neighborhoods that spares what it has
// recomputed before:
// score = cost of the neighborhood x kPenalty^times recomputed
//         / (size x staleness).
//
// Source: MegEngine's dynamic sublinear memory (imperative/src/impl/
// interpreter, `eval_func` and `find_best_tensor`). To the size it adds the
// free bytes on both sides of the block, which only an allocator knows; the
// window choice of a device's memory takes their part here.
class REMAT_API DtePolicy final : public EvictionPolicy {
 public:
  static constexpr double kPenalty = 1.0001;

  const char* name() const override {
    return "dte";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
  bool keeps(const OpGraph& graph, VersionId id, bool was_replayed)
      const override;
  void drain_lowered(const OpGraph& graph, std::vector<VersionId>& lowered)
      override;

  void on_captured(const OpGraph& graph, OpId op) override;
  void on_evicted(const OpGraph& graph, VersionId id) override;
  void on_rematerialized(const OpGraph& graph, VersionId id) override;
  void on_op_forgotten(const OpGraph& graph, OpId op, const OpRecord& record)
      override;
  void on_output_forgotten(const OpGraph& graph, OpId op) override;

 private:
  struct Recomputed {
    uint64_t created = 0; // of the version: slots are reused
    uint32_t times = 0;
  };

  DtrEqPolicy base_;
  std::vector<Recomputed> recomputed_; // by VersionId::index
};

} // namespace c10::remat
