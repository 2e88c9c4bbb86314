#pragma once

#include "EvictionPolicy.h"
#include "NeighborhoodCache.h"

#include <algorithm>

namespace c10::remat {

// What the policies have in common whose score has the cost of a neighborhood
// in it: the costs, kept up to date by what the engine tells.
class REMAT_API NeighborhoodPolicy : public EvictionPolicy {
 public:
  void drain_lowered(const OpGraph& graph, std::vector<VersionId>& lowered)
      override;

  void on_captured(const OpGraph& graph, OpId op) override;
  void on_evicted(const OpGraph& graph, VersionId id) override;
  void on_rematerialized(const OpGraph& graph, VersionId id) override;
  void on_op_forgotten(const OpGraph& graph, OpId op, const OpRecord& record)
      override;
  void on_output_forgotten(const OpGraph& graph, OpId op) override;

 protected:
  explicit NeighborhoodPolicy(Neighborhood::Side side) : neighborhoods_(side) {}

  // Of the neighborhood of `id`; at least 1.
  CostNs cost(const OpGraph& graph, VersionId id) const {
    return std::max<CostNs>(neighborhoods_.cost(graph, id), 1);
  }
  double cost_per_byte(const OpGraph& graph, VersionId id) const {
    return static_cast<double>(cost(graph, id)) /
        static_cast<double>(graph[id].size);
  }

 private:
  NeighborhoodCache neighborhoods_;
};

} // namespace c10::remat
