#pragma once

#include "NeighborhoodPolicy.h"

namespace c10::remat {

// DTR: score = cost of the neighborhood / (size x staleness).
//
// Source: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021
// (arXiv 2006.09616), h_DTR, over e* as defined there. It differs
// in that an op record with several absent outputs counts once.
class REMAT_API DtrPolicy : public NeighborhoodPolicy {
 public:
  DtrPolicy() : NeighborhoodPolicy(Neighborhood::Side::Both) {}

  const char* name() const override {
    return "dtr";
  }
  double weight(const OpGraph& graph, VersionId id) const override {
    return cost_per_byte(graph, id);
  }
  bool keeps(const OpGraph& graph, VersionId id, bool was_replayed)
      const override {
    return was_replayed && has_absent_reader(graph, id);
  }
};

} // namespace c10::remat
