#pragma once

#include "../policy/NextUsePolicy.h"
#include "Simulation.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace c10::remat {

// What an engine that never evicts sees of the workload; as far as it got once
// `may_go_on` has returned false.
struct Foresight {
  std::shared_ptr<const Future> future;
  uint32_t peak = 0; // place of the op that needs the most memory
};
REMAT_API Foresight foresee(
    const Workload& workload,
    const std::function<bool()>* may_go_on = nullptr);

// How to run a workload within a budget.
struct Plan {
  std::shared_ptr<const Tuning> tuning;
  SimulationResult result; // of running it
  size_t simulated = 0; // candidates tried
};

// Note [Improving a plan]
// A score is a guess at what evicting a value will cost; only running the
// workload tells. The planner starts from the exponents that do best over many
// networks; then with a bias for what would best be kept over the peak (Note
// [What to keep at the peak]), with several margins, the best of which is tried
// with other exponents, too; then from other exponents alone. In the end it
// changes, of the best so far, the bias of some values at random: up for some
// that came back, down for some that never did, or an exponent. What does not
// do better is undone. A candidate is dropped as soon as it has recomputed as
// much as the best.
//
// Deterministic for a workload, a budget, a number of candidates and a seed.
class REMAT_API Planner {
 public:
  static constexpr size_t kCandidates = 24;
  static constexpr size_t kMostCandidates = 256;

  Planner(const Workload& workload, Bytes budget, uint64_t seed = 1);
  // `foresight` is what an engine has seen of the workload. Ends early, with
  // what it has by then, once `may_go_on`, which must outlive the planner,
  // returns false.
  Planner(
      const Workload& workload,
      Bytes budget,
      Foresight foresight,
      const std::function<bool()>* may_go_on,
      uint64_t seed = 1);

  // Tries `candidates` more; returns the best of all so far.
  const Plan& improve(size_t candidates);
  // The usual effort: kCandidates, and more while none gets through.
  const Plan& improve();
  const Plan& best() const {
    return best_;
  }
  // What the best does until the peak.
  Foreseen foreseen() const;

 private:
  // False: it was interrupted.
  bool try_out(std::shared_ptr<const Tuning> tuning);
  std::optional<Tuning> next(); // none: nothing is left to gain
  static Tuning tuning_of(size_t start);
  // By value; empty if nothing is to be wished for.
  std::vector<float> wishful_bias(double margin) const;
  Tuning varied();
  double random(); // in [0, 1)

  const Workload& workload_;
  const Bytes budget_;
  const std::function<bool()>* const may_go_on_ = nullptr; // null: always
  std::shared_ptr<const Future> future_;
  uint32_t peak_;
  uint64_t state_;
  size_t next_start_ = 0;
  size_t next_wish_ = 0;
  size_t next_wishful_start_ = 0;
  std::vector<float> best_bias_; // of the wishes
  Plan best_;
  NextUsePolicy::Pasts pasts_; // in the best
};

} // namespace c10::remat
