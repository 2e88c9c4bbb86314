#include "PlannedPolicy.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace c10::remat {

namespace {

// After so many logs in a row that were of no use, as many iterations are
// passed over as there were.
constexpr uint32_t kUselessLogs = 4;

// A plan is made anew when costs have changed by this share of their sum.
constexpr double kDrift = 0.001;

// The best single choice for the published traces; see
// docs/design/policies.md.
Tuning default_tuning() {
  Tuning tuning;
  tuning.cost = 0.7;
  tuning.distance = 0.7;
  return tuning;
}

// Both are the same but for their costs.
bool has_drifted(const Future& from, const Future& to) {
  CostNs difference = 0;
  for (size_t i = 0; i < from.ops.size(); ++i) {
    difference += std::abs(from.ops[i].cost - to.ops[i].cost);
  }
  return static_cast<double>(difference) >
      kDrift * static_cast<double>(from.length());
}

} // namespace

PlannedPolicy::PlannedPolicy()
    : exchange_(std::make_shared<PlanExchange>()),
      untuned_(std::make_shared<Tuning>(default_tuning())),
      nothing_(std::make_shared<Future>()),
      iteration_(nothing_, untuned_) {}

double PlannedPolicy::weight(const OpGraph& graph, VersionId id) const {
  return is_following() ? iteration_.weight(graph, id)
                        : DtrPolicy::weight(graph, id);
}

bool PlannedPolicy::keeps(const OpGraph& graph, VersionId id, bool was_replayed)
    const {
  return is_following() ? iteration_.keeps(graph, id, was_replayed)
                        : DtrPolicy::keeps(graph, id, was_replayed);
}

void PlannedPolicy::drain_lowered(
    const OpGraph& graph,
    std::vector<VersionId>& lowered) {
  if (is_following()) {
    iteration_.drain_lowered(graph, lowered);
  } else {
    DtrPolicy::drain_lowered(graph, lowered);
  }
}

void PlannedPolicy::on_captured(const OpGraph& graph, OpId op) {
  DtrPolicy::on_captured(graph, op);
  for (const VersionId output : graph[op].outputs) {
    if (output && graph[output].epoch != epoch_) {
      epoch_ = graph[output].epoch;
      begin_iteration(graph);
      break;
    }
  }
  const bool was_on_course = iteration_.is_on_course();
  iteration_.on_captured(graph, op);
  most_alive_ = std::max(most_alive_, graph.owned_count());
  op_done(was_on_course);
  if (iteration_.recorder().recorded() == kShortest && is_logging_) {
    log_.add_leaves(graph);
  }
}

void PlannedPolicy::on_unrecorded(
    const OpGraph& graph,
    const UnrecordedOp& op) {
  const bool was_on_course = iteration_.is_on_course();
  iteration_.on_unrecorded(graph, op);
  op_done(was_on_course);
}

void PlannedPolicy::op_done(bool was_on_course) {
  if (was_on_course && !iteration_.is_on_course()) {
    ++changes_;
    change_course();
  }
  if (iteration_.recorder().place() >= longest()) {
    give_up();
  }
}

uint32_t PlannedPolicy::longest() const {
  return static_cast<uint32_t>(
      std::clamp<size_t>(most_alive_ * kOpsPerValue, kLongEnough, kLongest));
}

void PlannedPolicy::give_up() {
  iteration_.recorder().give_up();
  is_logging_ = false;
  log_.clear();
}

void PlannedPolicy::begin_iteration(const OpGraph& graph) {
  if (iteration_.recorder().recorded() >= kShortest) {
    const bool was_planned = plan_from_start_ != nullptr && is_following();
    learn(graph);
    if (was_planned && !is_desperate_) {
      note_trial(known_.front());
    }
    decide_logging(/*was_short=*/room_ > 0);
    room_ = 0;
  }
  log_.clear();
  most_alive_ = 0;
  is_desperate_ = recomputed_ > iteration_.length() / 2;
  recomputed_ = 0;
  take_plan();
  if (known_.empty()) {
    plan_from_start_ = nullptr;
    places_ = false;
    iteration_.restart(nothing_, untuned_);
  } else {
    follow(known_.front(), /*from_start=*/true);
  }
  ++changes_;
}

void PlannedPolicy::follow(const Known& known, bool from_start) {
  const KnownPlan* plan = plan_of(known, budget_);
  is_online_ = plan != nullptr && plan->tuning == nullptr;
  const auto& tuning = plan == nullptr || is_online_ ? untuned_ : plan->tuning;
  planned_kind_ = is_online_ || tuning != untuned_ ? known.number : 0;
  plan_from_start_ =
      from_start && !is_online_ && plan != nullptr ? tuning : nullptr;
  places_ =
      plan_from_start_ != nullptr && !is_desperate_ && plan->trial.places();
  if (from_start) {
    iteration_.restart(known.future, tuning);
  } else {
    iteration_.expect(known.future, tuning);
  }
}

const PlannedPolicy::KnownPlan* PlannedPolicy::plan_of(
    const Known& known,
    Bytes budget) const {
  const KnownPlan* last = nullptr;
  for (const KnownPlan& plan : known.plans) {
    if (&plan == known.plans.data() && !known.has_answer) {
      continue; // its tuning is not there yet
    }
    if (plan.budget == budget) {
      return &plan;
    }
    last = last == nullptr ? &plan : last;
  }
  return last;
}

void PlannedPolicy::learn(const OpGraph& graph) {
  FutureRecorder& recorder = iteration_.recorder();
  recorder.finish(graph);
  const auto future = std::make_shared<const Future>(recorder.take());
  const auto same =
      std::find_if(known_.begin(), known_.end(), [&](const Known& known) {
        return known.future->fingerprint() == future->fingerprint() &&
            known.future->ops.size() == future->ops.size();
      });
  if (same == known_.end()) {
    Known first;
    first.number = ++last_number_;
    first.future = future;
    known_.insert(known_.begin(), std::move(first));
    size_t ops = 0;
    for (size_t i = 0; i < known_.size(); ++i) {
      ops += known_[i].future->ops.size();
      if (i > 0 && (i >= kMostKnown || ops > kMostOps)) {
        known_.resize(i);
      }
    }
    return;
  }
  std::rotate(known_.begin(), same, same + 1);
  known_.front().future = future; // the costs are newer
  ++known_.front().repeats;
  if (is_logging_ && room_ > 0 && log_.is_complete() &&
      wants_plan(known_.front(), room_budget_)) {
    ask_for_plan(known_.front());
  }
}

void PlannedPolicy::note_trial(Known& known) {
  for (KnownPlan& plan : known.plans) {
    if (plan.tuning != plan_from_start_) {
      continue;
    }
    if (!plan.trial.is_over()) {
      plan.trial.note(recomputed_);
      continue;
    }
    ++plan.runs;
    plan.recomputed = recomputed_;
    if (plan.rival != nullptr && plan.runs == Trial::kEach) {
      if (plan.rival_recomputed < recomputed_) {
        plan.tuning = std::move(plan.rival);
        plan.recomputed = plan.rival_recomputed;
      }
      plan.rival = nullptr;
    }
  }
}

bool PlannedPolicy::wants_plan(const Known& known, Bytes budget) const {
  if (budget == 0 ||
      std::any_of(known_.begin(), known_.end(), [&](const Known& any) {
        return awaits_answer(any);
      })) {
    return false;
  }
  const KnownPlan* plan = plan_of(known, budget);
  return plan == nullptr || plan->budget != budget ||
      (known.repeats >= 2 * plan->repeats &&
       has_drifted(*plan->future, *known.future));
}

void PlannedPolicy::ask_for_plan(Known& known) {
  PlanRequest request;
  request.iteration = known.future->fingerprint();
  request.future = known.future;
  request.program = log_.take();
  request.budget = room_budget_;
  request.room = std::min(room_, room_budget_);
  const uint64_t session = exchange_->session();
  if (!exchange_->ask(request)) {
    return;
  }
  std::vector<KnownPlan>& plans = known.plans;
  if (!known.has_answer) {
    plans.erase(plans.begin()); // asked for in another session
  }
  // An earlier one for this budget holds until the answer is there.
  plans.insert(
      plans.begin(), {room_budget_, nullptr, known.future, known.repeats});
  known.asked_session = session;
  known.has_answer = false;
  useless_logs_ = 0;
}

void PlannedPolicy::take_plan() {
  const auto answer = exchange_->take_answer();
  if (!answer) {
    return;
  }
  tried_ += answer->candidates;
  adopted_ += answer->is_found ? 1 : 0;
  for (Known& known : known_) {
    if (known.has_answer || known.future->fingerprint() != answer->iteration) {
      continue;
    }
    std::vector<KnownPlan>& plans = known.plans;
    const KnownPlan* before = plan_of(known, answer->budget);
    if (before != nullptr && before->budget == answer->budget) {
      plans.front().trial = before->trial; // plans for a budget are alike
      if (before->runs >= Trial::kEach && answer->is_found) {
        plans.front().rival = before->tuning;
        plans.front().rival_recomputed = before->recomputed;
      }
    }
    known.has_answer = true;
    plans.front().tuning = answer->is_found ? answer->tuning : untuned_;
    plans.erase(
        std::remove_if(
            plans.begin() + 1,
            plans.end(),
            [&](const KnownPlan& plan) {
              return plan.budget == answer->budget;
            }),
        plans.end());
    plans.resize(std::min(plans.size(), kMostBudgets));
  }
}

void PlannedPolicy::decide_logging(bool was_short) {
  useless_logs_ += is_logging_ ? 1 : 0;
  const bool is_of_use = was_short && exchange_->session() != 0 &&
      std::any_of(known_.begin(), known_.end(), [&](const Known& known) {
                           return wants_plan(known, budget_);
                         });
  is_logging_ = is_of_use && skip_logs_ == 0;
  skip_logs_ -= skip_logs_ > 0 ? 1 : 0;
  if (is_logging_ && useless_logs_ >= kUselessLogs) {
    skip_logs_ = useless_logs_;
  }
}

void PlannedPolicy::change_course() {
  const Future& done = iteration_.recorder().future();
  if (done.ops.empty()) {
    return;
  }
  for (const Known& known : known_) {
    const Future& future = *known.future;
    if (future.ops.size() >= done.ops.size() &&
        future.ops[done.ops.size() - 1].fingerprint == done.fingerprint()) {
      follow(known, /*from_start=*/false);
      return;
    }
  }
}

void PlannedPolicy::on_read(const OpGraph& graph, VersionId id) {
  iteration_.on_read(graph, id);
}

void PlannedPolicy::on_evicted(const OpGraph& graph, VersionId id) {
  DtrPolicy::on_evicted(graph, id);
  iteration_.on_evicted(graph, id);
}

void PlannedPolicy::on_rematerialized(const OpGraph& graph, VersionId id) {
  DtrPolicy::on_rematerialized(graph, id);
  iteration_.on_rematerialized(graph, id);
}

void PlannedPolicy::on_replayed(CostNs cost) {
  recomputed_ += cost;
}

void PlannedPolicy::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    const OpRecord& record) {
  DtrPolicy::on_op_forgotten(graph, op, record);
  iteration_.on_op_forgotten(graph, op, record);
}

void PlannedPolicy::on_output_forgotten(const OpGraph& graph, OpId op) {
  DtrPolicy::on_output_forgotten(graph, op);
  iteration_.on_output_forgotten(graph, op);
}

void PlannedPolicy::on_residual(Bytes /*residual*/, Bytes budget) {
  budget_ = budget == std::numeric_limits<Bytes>::max() ? 0 : budget;
}

PlanCensus PlannedPolicy::plan_census() const {
  PlanCensus census;
  census.kind = iteration_.is_on_course() ? planned_kind_ : 0;
  census.kinds = known_.size();
  census.is_searching = exchange_->is_busy();
  census.tried = tried_;
  census.adopted = adopted_;
  census.memory = log_.bytes();
  for (const Known& known : known_) {
    census.memory += known.future->bytes();
    for (const KnownPlan& plan : known.plans) {
      census.memory += plan.future == known.future ? 0 : plan.future->bytes();
      census.memory += plan.tuning == nullptr
          ? 0
          : plan.tuning->bias.capacity() * sizeof(float);
    }
  }
  return census;
}

void PlannedPolicy::plan_placement(PlacementPlan& plan) const {
  if (places_ && is_following()) {
    iteration_.plan_placement(plan);
  }
}

bool PlannedPolicy::lets_go(const OpGraph& graph, VersionId id) const {
  return places_ && is_following() && iteration_.lets_go(graph, id);
}

void PlannedPolicy::on_pressure(Bytes room) {
  room_ = std::max(room_, room);
  room_budget_ = budget_;
}

} // namespace c10::remat
