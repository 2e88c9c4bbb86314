#include "Planner.h"

#include <algorithm>
#include <cmath>

namespace c10::remat {

namespace {

// Evicts nothing; only looks.
class LookingPolicy final : public EvictionPolicy {
 public:
  explicit LookingPolicy(std::shared_ptr<FutureRecorder> recorder)
      : recorder_(std::move(recorder)) {}
  const char* name() const override {
    return "none";
  }
  double weight(const OpGraph& /*graph*/, VersionId /*id*/) const override {
    return 1;
  }
  void on_captured(const OpGraph& graph, OpId op) override {
    recorder_->captured(graph, op);
  }
  void on_read(const OpGraph& graph, VersionId id) override {
    recorder_->read(graph, id);
  }

 private:
  std::shared_ptr<FutureRecorder> recorder_;
};

struct Start {
  double cost;
  double size;
  double distance;
  bool keeps;
};

// The best ones over many networks first. The last is MSPS.
constexpr Start kStarts[] = {
    {0.7, 1, 0.7, true},
    {1, 1, 0.5, true},
    {1, 1, 1, true},
    {0.5, 1, 0.5, true},
    {0.5, 1, 1, true},
    {1, 1, 0.2, true},
    {0.3, 1, 0.3, true},
    {1, 0.5, 0.5, true},
    {1, 1, 0, false},
};

} // namespace

std::shared_ptr<const Future> future_of(
    const Workload& workload,
    const std::function<bool()>* may_go_on) {
  auto recorder = std::make_shared<FutureRecorder>();
  SimulationLimits limits;
  limits.may_go_on = may_go_on;
  simulate(
      workload,
      std::make_unique<LookingPolicy>(recorder),
      Config::kUnlimited,
      limits);
  return std::make_shared<Future>(recorder->future());
}

Planner::Planner(const Workload& workload, Bytes budget, uint64_t seed)
    : workload_(workload),
      budget_(budget),
      future_(future_of(workload)),
      state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}

Planner::Planner(
    const Workload& workload,
    Bytes budget,
    std::shared_ptr<const Future> future,
    const std::function<bool()>* may_go_on,
    uint64_t seed)
    : workload_(workload),
      budget_(budget),
      may_go_on_(may_go_on),
      future_(std::move(future)),
      state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}

const Plan& Planner::improve(size_t candidates) {
  for (size_t i = 0; i < candidates; ++i) {
    Tuning tuning;
    if (next_start_ < std::size(kStarts)) {
      const Start& start = kStarts[next_start_++];
      tuning.cost = start.cost;
      tuning.size = start.size;
      tuning.distance = start.distance;
      tuning.keeps = start.keeps;
    } else {
      if (best_.result.is_feasible() && best_.result.recompute == 0) {
        break;
      }
      tuning = varied();
    }
    if (!try_out(std::make_shared<Tuning>(std::move(tuning)))) {
      break;
    }
  }
  return best_;
}

const Plan& Planner::improve() {
  improve(kCandidates);
  while (!best_.result.is_feasible() && best_.simulated < kMostCandidates) {
    improve(kCandidates);
  }
  return best_;
}

bool Planner::try_out(std::shared_ptr<const Tuning> tuning) {
  NextUsePolicy::Returns returns(future_->values.size());
  const bool is_first = best_.simulated == 0;
  const SimulationResult& before = best_.result;
  SimulationLimits limits;
  limits.may_go_on = may_go_on_;
  limits.most_recompute =
      is_first || !before.is_feasible() ? -1 : before.recompute;
  const SimulationResult result = simulate(
      workload_,
      std::make_unique<NextUsePolicy>(future_, tuning, &returns),
      budget_,
      limits);
  if (result.outcome == SimulationResult::Outcome::Interrupted) {
    return false;
  }
  ++best_.simulated;
  // If neither gets through, the one that gets further.
  const bool is_better = is_first ||
      (result.is_feasible() != before.is_feasible() ? result.is_feasible()
           : result.is_feasible() ? result.recompute <= before.recompute
                                  : result.elapsed - result.recompute >=
               before.elapsed - before.recompute);
  if (is_better) {
    best_.result = result;
    best_.tuning = std::move(tuning);
    returns_ = std::move(returns);
  }
  return true;
}

Tuning Planner::varied() {
  Tuning tuning = *best_.tuning;
  if (random() < 0.15) {
    double* const exponents[] = {&tuning.cost, &tuning.size, &tuning.distance};
    double& exponent = *exponents[static_cast<size_t>(random() * 3)];
    exponent = std::max(0.0, exponent + 0.3 * (random() - 0.5));
    return tuning;
  }
  tuning.bias.resize(future_->values.size());
  // One value in so many, so that some changes are small and some are not.
  const double share = std::exp(-5.0 * random());
  const double up = 3 * random();
  const double down = 3 * random();
  for (size_t i = 0; i < returns_.size(); ++i) {
    if (returns_[i] > 0) {
      if (random() < share) {
        tuning.bias[i] += static_cast<float>(random() < 0.8 ? up : -down);
      }
    } else if (random() < 0.2 * share) {
      tuning.bias[i] += static_cast<float>(random() < 0.8 ? -down : up);
    }
  }
  return tuning;
}

double Planner::random() {
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return static_cast<double>(state_ >> 11) / 9007199254740992.0;
}

} // namespace c10::remat
