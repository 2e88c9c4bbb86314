#pragma once

#include "DtrPolicy.h"
#include "NextUsePolicy.h"
#include "PlanExchange.h"
#include "ProgramLog.h"

#include <memory>
#include <vector>

namespace c10::remat {

// Training repeats: expects of each iteration what an earlier one did, and
// evicts by NextUsePolicy while that holds, by DTR where it does not.
//
// Note [Iterations]
// An iteration begins after an update of parameters (StorageVersion::epoch). An
// optimizer updates one parameter after the other, with few recorded ops
// between: only a stretch of kShortest recorded ops without an update is one,
// from the first op after the last update on. One that goes on for far longer
// than what the program held at once can explain (kOpsPerValue ops for each
// version) is not training: it has no end, as in a program that only infers,
// and is forgotten, or its record would grow with it.
//
// The last few different ones are known. An iteration is expected to be like
// the last; at the first op that differs from it, like the last that began as
// this one did; where there is none, nothing is expected until the next
// iteration.
//
// Note [Plans of iterations]
// An iteration that was repeated, under pressure, is handed to whoever makes
// plans (PlanExchange), with a log of what the program did. The answer, for
// iterations to come, is a tuning, or that DTR does better. It holds for the
// budget that it was made for, and those for the last few budgets are known, as
// budgets may come and go (a `with` block around some steps); as costs are
// still being measured in the first few iterations, plans are made anew after
// 2, 4, 8... repeats if they did. Logging is on only while an iteration is
// without a plan, and ever less often while logs are of no use, as where
// nothing repeats.
//
// Note [Is a placement worth it?]
// Where bytes lie on a device decides what has to go for a large request, and
// no simulation knows. So a plan is followed with its placement (Note [Two
// ends]) for two iterations and without for two, and then as the second of each
// two recomputed less; the first begins with what the others have left behind.
//
// For the same reason a plan that is made anew has to do better there than the
// one before: after two iterations that are the trial's outcome, the one that
// recomputed less is followed.
//
// Where an iteration has recomputed more than half of itself the next is run
// without it in any case: memory is then a few of the largest blocks, and two
// that are in use at both ends leave nothing between them.
class REMAT_API PlannedPolicy final : public DtrPolicy {
 public:
  static constexpr uint32_t kShortest = 16;
  static constexpr uint32_t kLongest = 1 << 18;
  static constexpr uint32_t kOpsPerValue = 128;
  static constexpr uint32_t kLongEnough = 1 << 12; // never too long
  static constexpr size_t kMostKnown = 8;
  static constexpr size_t kMostBudgets = 4;
  // Ops of all known ones together, unless there is only one.
  static constexpr size_t kMostOps = kLongest;

  PlannedPolicy();

  const char* name() const override {
    return "planned";
  }
  double weight(const OpGraph& graph, VersionId id) const override;
  bool ranks_anew() const override {
    return is_following();
  }
  // Scores of two iterations do not compare.
  uint64_t lock_epoch() const override {
    return changes_;
  }
  bool keeps(const OpGraph& graph, VersionId id, bool was_replayed)
      const override;
  void drain_lowered(const OpGraph& graph, std::vector<VersionId>& lowered)
      override;

  void on_captured(const OpGraph& graph, OpId op) override;
  void on_unrecorded(const OpGraph& graph, const UnrecordedOp& op) override;
  void on_read(const OpGraph& graph, VersionId id) override;
  void on_evicted(const OpGraph& graph, VersionId id) override;
  void on_rematerialized(const OpGraph& graph, VersionId id) override;
  void on_replayed(CostNs cost) override;
  void on_op_forgotten(const OpGraph& graph, OpId op, const OpRecord& record)
      override;
  void on_output_forgotten(const OpGraph& graph, OpId op) override;
  void on_residual(Bytes residual, Bytes budget) override;
  void on_pressure(Bytes room) override;
  void plan_placement(PlacementPlan& plan) const override;
  bool lets_go(const OpGraph& graph, VersionId id) const override;

  ProgramLog* program_log() override {
    return is_logging_ ? &log_ : nullptr;
  }
  std::shared_ptr<PlanExchange> plan_exchange() override {
    return exchange_;
  }

  PlanCensus plan_census() const override;

  // Does this iteration repeat one whose next uses decide?
  bool is_following() const {
    return iteration_.is_on_course() && !is_online_;
  }

 private:
  // Of a plan; see Note [Is a placement worth it?].
  struct Trial {
    static constexpr uint32_t kEach = 2;

    uint32_t iterations = 0;
    CostNs with = 0; // recomputed in the last of those with the placement
    CostNs without = 0;

    bool is_over() const {
      return iterations >= 2 * kEach;
    }
    bool places() const {
      return iterations < kEach || (is_over() && with <= without);
    }
    void note(CostNs recomputed) {
      if (!is_over()) {
        (iterations < kEach ? with : without) = recomputed;
        ++iterations;
      }
    }
  };
  struct KnownPlan {
    Bytes budget = 0; // that it is for
    std::shared_ptr<const Tuning> tuning; // null: the online policy
    std::shared_ptr<const Future> future; // when it was asked for: its costs,
    uint64_t repeats = 0; // and how often it had been repeated
    Trial trial = {};
    // Since the trial was over:
    uint32_t runs = 0;
    CostNs recomputed = 0; // in the last
    // The plan before, and what it recomputed; null: there is none, or it has
    // been decided.
    std::shared_ptr<const Tuning> rival = nullptr;
    CostNs rival_recomputed = 0;
  };
  struct Known {
    uint64_t number = 0; // of its kind
    std::shared_ptr<const Future> future;
    uint64_t repeats = 0;
    std::vector<KnownPlan> plans; // the last asked for first
    // Of the first of these:
    uint64_t asked_session = 0;
    bool has_answer = true;
  };

  void begin_iteration(const OpGraph& graph);
  // Ops that this iteration may still be expected to end within.
  uint32_t longest() const;
  void give_up();
  // What the iteration that has just ended did is the last that is known.
  void learn(const OpGraph& graph);
  // The iteration that has just ended was run by the plan from its start to its
  // end.
  void note_trial(Known& known);
  void ask_for_plan(Known& known);
  void take_plan();
  void decide_logging(bool was_short);
  bool wants_plan(const Known& known, Bytes budget) const;
  bool awaits_answer(const Known& known) const {
    return !known.has_answer && known.asked_session == exchange_->session();
  }
  // What there is to do after each op, recorded or not.
  void op_done(bool was_on_course);
  // Goes on as one that began as this iteration has, if there is one.
  void change_course();
  // From now on as `known`, by its plan.
  void follow(const Known& known, bool from_start);
  // For the budget; else for the last one before; null: there is none.
  const KnownPlan* plan_of(const Known& known, Bytes budget) const;

  const std::shared_ptr<PlanExchange> exchange_;
  const std::shared_ptr<const Tuning> untuned_;
  const std::shared_ptr<const Future> nothing_;
  std::vector<Known> known_; // the last first
  NextUsePolicy iteration_; // this one
  bool is_online_ = false; // the plan for it says so
  // That this one is run by from its start; null: there is none.
  std::shared_ptr<const Tuning> plan_from_start_;
  bool places_ = false; // as the plan says
  bool is_desperate_ = false; // see Note [Is a placement worth it?]
  CostNs recomputed_ = 0; // in this iteration
  uint64_t planned_kind_ = 0; // that it is expected to be; 0: without a plan
  uint64_t epoch_ = 0;
  size_t most_alive_ = 0; // owned versions at once, in this iteration
  uint64_t changes_ = 0; // of what decides
  Bytes budget_ = 0; // 0: not known, or unlimited
  Bytes room_ = 0; // the most there was under pressure; 0: there was none
  Bytes room_budget_ = 0; // then
  ProgramLog log_;
  bool is_logging_ = false;
  uint64_t last_number_ = 0; // of a kind
  uint64_t tried_ = 0;
  uint64_t adopted_ = 0;
  uint32_t useless_logs_ = 0; // since the last that was of use
  uint32_t skip_logs_ = 0; // iterations
};

} // namespace c10::remat
