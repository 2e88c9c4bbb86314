#pragma once

#include "EvictionPolicy.h"
#include "NeighborhoodCache.h"

namespace c10::remat {

// Memory saved per second of recompute, the most first:
// score = cost of the version and its absent ancestors / size.
//
// Source: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep
// Learning", ASPLOS 2020, section 4.4; as h_MSPS in Kirisame et al. (arXiv
// 2006.09616), section 4.1, which leaves out Capuchin's measured trace.
class REMAT_API MspsPolicy final : public EvictionPolicy {
 public:
  const char* name() const override {
    return "msps";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
  bool uses_staleness() const override {
    return false;
  }
  void drain_lowered(const OpGraph& graph, std::vector<VersionId>& lowered)
      override;

  void on_captured(const OpGraph& graph, OpId op) override;
  void on_evicted(const OpGraph& graph, VersionId id) override;
  void on_rematerialized(const OpGraph& graph, VersionId id) override;
  void on_op_forgotten(const OpGraph& graph, OpId op, const OpRecord& record)
      override;
  void on_output_forgotten(const OpGraph& graph, OpId op) override;

 private:
  NeighborhoodCache neighborhoods_{Neighborhood::Side::Ancestors};
};

} // namespace c10::remat
