#include "CentralityPolicy.h"

#include <algorithm>
#include <cmath>

namespace c10::remat {

namespace {

// A report counts for this share of the mean: it follows the last hundred or
// so.
constexpr double kDecay = 1.0 / 64;

// Locks are set anew when what they rest on has changed by this factor.
constexpr double kResidualChange = 2;

constexpr size_t kFewestBetweenRecomputes = 64;

} // namespace

double CentralityPolicy::weight(const OpGraph& graph, VersionId id) const {
  return std::pow(DtrPolicy::weight(graph, id), kDamping) *
      (1 + kGain * centrality_(graph, id));
}

bool CentralityPolicy::is_locked(const OpGraph& graph, VersionId id) const {
  return centrality_(graph, id) >= lowest_locked_;
}

void CentralityPolicy::drain_lowered(
    const OpGraph& graph,
    std::vector<VersionId>& lowered) {
  DtrPolicy::drain_lowered(graph, lowered);
  lowered.insert(lowered.end(), lowered_.begin(), lowered_.end());
  lowered_.clear();
}

void CentralityPolicy::on_captured(const OpGraph& graph, OpId op) {
  DtrPolicy::on_captured(graph, op);
  if (++captured_ >= recompute_at_ && is_limited_) {
    recompute(graph);
  }
}

void CentralityPolicy::on_residual(Bytes residual, Bytes budget) {
  is_limited_ = budget != std::numeric_limits<Bytes>::max();
  if (!is_limited_) {
    return;
  }
  residual_ += kDecay * (static_cast<double>(residual) - residual_);
  if (residual_ * kResidualChange < residual_of_locks_ ||
      residual_ > residual_of_locks_ * kResidualChange) {
    set_locks();
  }
}

void CentralityPolicy::recompute(const OpGraph& graph) {
  captured_ = 0;
  recompute_at_ = std::max(graph.op_count() / 2, kFewestBetweenRecomputes);
  centrality_.recompute(graph);
  ranking_.clear();
  lowered_.clear();
  graph.for_each_version([&](VersionId id) {
    if (graph.is_evictable(id)) {
      lowered_.push_back(id);
      const double centrality = centrality_(graph, id);
      if (centrality > 0) {
        ranking_.push_back({centrality, graph[id].size});
      }
    }
  });
  std::stable_sort(
      ranking_.begin(), ranking_.end(), [](const Ranked& a, const Ranked& b) {
        return a.centrality > b.centrality;
      });
  Bytes total = 0;
  for (Ranked& ranked : ranking_) {
    total += ranked.total;
    ranked.total = total;
  }
  set_locks();
}

void CentralityPolicy::set_locks() {
  residual_of_locks_ = residual_;
  const double allowed = kLockShare * residual_;
  const auto end = std::partition_point(
      ranking_.begin(), ranking_.end(), [&](const Ranked& ranked) {
        return static_cast<double>(ranked.total) <= allowed;
      });
  lowest_locked_ = std::numeric_limits<double>::infinity();
  // Of equals all or none.
  for (auto it = end; it != ranking_.begin();) {
    --it;
    if (end == ranking_.end() || it->centrality != end->centrality) {
      lowest_locked_ = it->centrality;
      break;
    }
  }
  ++lock_epoch_;
}

} // namespace c10::remat
