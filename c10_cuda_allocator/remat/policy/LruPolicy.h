#pragma once

#include "EvictionPolicy.h"

namespace c10::remat {

// Least recently used: score = 1 / staleness.
//
// Source: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021
// (arXiv 2006.09616), h_LRU.
class REMAT_API LruPolicy final : public EvictionPolicy {
 public:
  const char* name() const override {
    return "lru";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
};

} // namespace c10::remat
