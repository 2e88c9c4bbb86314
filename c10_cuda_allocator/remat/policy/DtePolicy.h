#pragma once

#include "DtrEqPolicy.h"

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
class REMAT_API DtePolicy final : public DtrEqPolicy {
 public:
  static constexpr double kPenalty = 1.0001;

  const char* name() const override {
    return "dte";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
  void on_rematerialized(const OpGraph& graph, VersionId id) override;

 private:
  struct Recomputed {
    uint64_t created = 0; // of the version: slots are reused
    uint32_t times = 0;
  };

  std::vector<Recomputed> recomputed_; // by VersionId::index
};

} // namespace c10::remat
