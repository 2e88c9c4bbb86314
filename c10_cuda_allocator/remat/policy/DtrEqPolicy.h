#pragma once

#include "EvictionPolicy.h"
#include "NeighborhoodEstimate.h"
#include "VersionSet.h"

namespace c10::remat {

// DTR with estimated neighborhoods:
// score = (own cost + cost of the sets touched) / (size x staleness).
//
// Source: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021
// (arXiv 2006.09616), h_DTR^eq.
class REMAT_API DtrEqPolicy : public EvictionPolicy {
 public:
  const char* name() const override {
    return "dtr_eq";
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
  void report_neighbors(const OpGraph& graph, VersionId id);

  NeighborhoodEstimate estimate_;
  // Neighbors of what left a set. Other versions that touch the set are found
  // by VictimIndex's sweep.
  VersionSet lowered_;
};

} // namespace c10::remat
