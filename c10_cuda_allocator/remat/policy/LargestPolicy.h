#pragma once

#include "EvictionPolicy.h"

namespace c10::remat {

// The largest first: score = 1 / size.
//
// Source: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021
// (arXiv 2006.09616), h_size; GreedyRemat of Kumar et al.,
// "Efficient Rematerialization for Deep Networks", NeurIPS 2019.
class REMAT_API LargestPolicy final : public EvictionPolicy {
 public:
  const char* name() const override {
    return "largest";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
  bool uses_staleness() const override {
    return false;
  }
};

} // namespace c10::remat
