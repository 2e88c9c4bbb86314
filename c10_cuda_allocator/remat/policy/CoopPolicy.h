#pragma once

#include "DtrEqPolicy.h"

namespace c10::remat {

// Coop: the cheapest run of neighboring blocks that is large enough, where a
// block costs (own cost + cost of the sets touched) / staleness.
//
// Source: Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023 (arXiv
// 2311.00591). The run is chosen by Evictor::evict_for, as for every policy on
// memory that has addresses; Coop moves nothing. Where memory has none, any
// bytes will do, and what is left is DTR's score. Its recomputable in-place ops
// are what every in-place op is here, a new version in the same block. Not here
// is its partition of cheap and dear blocks to the two ends of memory: our
// allocator keeps what can be evicted apart from what cannot.
class REMAT_API CoopPolicy final : public DtrEqPolicy {
 public:
  const char* name() const override {
    return "coop";
  }
  bool moves_blocks() const override {
    return false;
  }
};

} // namespace c10::remat
