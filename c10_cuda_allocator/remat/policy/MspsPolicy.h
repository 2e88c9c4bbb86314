#pragma once

#include "NeighborhoodPolicy.h"

namespace c10::remat {

// Memory saved per second of recompute, the most first:
// score = cost of the version and its absent ancestors / size.
//
// Source: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep
// Learning", ASPLOS 2020; as h_MSPS in Kirisame et al. (arXiv
// 2006.09616), which leaves out Capuchin's measured trace.
class REMAT_API MspsPolicy final : public NeighborhoodPolicy {
 public:
  MspsPolicy() : NeighborhoodPolicy(Neighborhood::Side::Ancestors) {}

  const char* name() const override {
    return "msps";
  }
  double weight(const OpGraph& graph, VersionId id) const override {
    return cost_per_byte(graph, id);
  }
  bool uses_staleness() const override {
    return false;
  }
};

} // namespace c10::remat
