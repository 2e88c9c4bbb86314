#include "Planner.h"

#include "Retention.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

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
  void on_unrecorded(const OpGraph& graph, const UnrecordedOp& op) override {
    recorder_->unrecorded(graph, op);
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

// Parts of the budget that are left free where wishes are fulfilled: what is
// made again after the peak needs room, too.
constexpr double kMargins[] = {0, 0.05, 0.1, 0.2};
// Those that are tried with the best margin, too.
constexpr size_t kWishfulStarts[] = {1, std::size(kStarts) - 1};
// How much a wish adds to or takes from the logarithm of a score: it decides at
// the peak, and what is needed within moments stays all the same.
constexpr float kWishBias = 4;

// Smaller blocks lie elsewhere: see CUDACachingAllocator.
constexpr Bytes kSmallestPlaced = (Bytes{1} << 20) + 1;

} // namespace

Foresight foresee(
    const Workload& workload,
    const std::function<bool()>* may_go_on) {
  auto recorder = std::make_shared<FutureRecorder>();
  SimulationLimits limits;
  limits.may_go_on = may_go_on;
  const SimulationResult result = simulate(
      workload,
      std::make_unique<LookingPolicy>(recorder),
      Config::kUnlimited,
      limits);
  return {std::make_shared<Future>(recorder->future()), result.peak_place};
}

Planner::Planner(const Workload& workload, Bytes budget, uint64_t seed)
    : Planner(workload, budget, foresee(workload), nullptr, seed) {}

Planner::Planner(
    const Workload& workload,
    Bytes budget,
    Foresight foresight,
    const std::function<bool()>* may_go_on,
    uint64_t seed)
    : workload_(workload),
      budget_(budget),
      may_go_on_(may_go_on),
      future_(std::move(foresight.future)),
      peak_(foresight.peak),
      state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}

const Plan& Planner::improve(size_t candidates) {
  for (size_t i = 0; i < candidates; ++i) {
    std::optional<Tuning> tuning = next();
    if (!tuning) {
      break;
    }
    if (!try_out(std::make_shared<Tuning>(std::move(*tuning)))) {
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

// Those of Note [Improving a plan], in its order.
std::optional<Tuning> Planner::next() {
  if (next_start_ == 0) {
    return tuning_of(next_start_++);
  }
  while (next_wish_ < std::size(kMargins)) {
    const size_t margin = next_wish_++;
    std::vector<float> bias = wishful_bias(kMargins[margin]);
    if (!bias.empty()) {
      Tuning tuning = tuning_of(0);
      tuning.bias = std::move(bias);
      return tuning;
    }
  }
  // Still without a wish if none did well.
  if (best_bias_.empty() && !best_.tuning->bias.empty()) {
    best_bias_ = best_.tuning->bias;
  }
  while (next_wishful_start_ < std::size(kWishfulStarts)) {
    Tuning tuning = tuning_of(kWishfulStarts[next_wishful_start_++]);
    if (!best_bias_.empty()) {
      tuning.bias = best_bias_;
      return tuning;
    }
  }
  if (next_start_ < std::size(kStarts)) {
    return tuning_of(next_start_++);
  }
  if (best_.result.is_feasible() && best_.result.recompute == 0) {
    return std::nullopt;
  }
  return varied();
}

bool Planner::try_out(std::shared_ptr<const Tuning> tuning) {
  NextUsePolicy::Pasts pasts(future_->values.size());
  const bool is_first = best_.simulated == 0;
  const SimulationResult& before = best_.result;
  SimulationLimits limits;
  limits.may_go_on = may_go_on_;
  limits.most_recompute =
      is_first || !before.is_feasible() ? -1 : before.recompute;
  const SimulationResult result = simulate(
      workload_,
      std::make_unique<NextUsePolicy>(future_, tuning, &pasts),
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
    pasts_ = std::move(pasts);
  }
  return true;
}

Tuning Planner::tuning_of(size_t start) {
  Tuning tuning;
  tuning.cost = kStarts[start].cost;
  tuning.size = kStarts[start].size;
  tuning.distance = kStarts[start].distance;
  tuning.keeps = kStarts[start].keeps;
  return tuning;
}

std::vector<float> Planner::wishful_bias(double margin) const {
  const auto room =
      static_cast<Bytes>(static_cast<double>(budget_) * (1 - margin));
  std::vector<float> bias;
  for (const Wish wish :
       wishes_at_peak(*future_, peak_, workload_.peak(), room, may_go_on_)) {
    bias.push_back(
        wish == Wish::Keep        ? kWishBias
            : wish == Wish::LetGo ? -kWishBias
                                  : 0);
  }
  return bias;
}

Foreseen Planner::foreseen() const {
  Foreseen foreseen;
  foreseen.until = peak_;
  foreseen.evicted_at.resize(future_->values.size());
  for (size_t i = 0; i < future_->values.size(); ++i) {
    const Future::Value& value = future_->values[i];
    if (value.size < kSmallestPlaced || value.maker >= peak_ ||
        value.uses.empty() || value.uses.back() <= peak_) {
      continue;
    }
    const NextUsePolicy::Past past =
        i < pasts_.size() ? pasts_[i] : NextUsePolicy::Past{};
    if (past.returns == 0) {
      foreseen.evicted_at[i] = Foreseen::kStays;
    } else if (past.evicted_at <= peak_) {
      foreseen.evicted_at[i] = past.evicted_at;
    }
  }
  return foreseen;
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
  for (size_t i = 0; i < pasts_.size(); ++i) {
    if (pasts_[i].returns > 0) {
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
