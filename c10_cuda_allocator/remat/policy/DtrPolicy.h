#pragma once

#include "EvictionPolicy.h"
#include "NeighborhoodCache.h"

namespace c10::remat {

// DTR: score = cost of the neighborhood / (size x staleness).
//
// Source: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021
// (arXiv 2006.09616), h_DTR, section 4.1, over e* as defined there. It differs
// in that an op record with several absent outputs counts once.
class REMAT_API DtrPolicy final : public EvictionPolicy {
 public:
  const char* name() const override {
    return "dtr";
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
  NeighborhoodCache neighborhoods_{Neighborhood::Side::Both};
};

} // namespace c10::remat
