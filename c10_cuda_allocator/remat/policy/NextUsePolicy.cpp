#include "NextUsePolicy.h"

#include "PlacementPlan.h"

#include <algorithm>
#include <cmath>

namespace c10::remat {

namespace {

// A walk to the absent descendants ends after so many.
constexpr size_t kMostReached = 256;

} // namespace

double NextUsePolicy::weight(const OpGraph& graph, VersionId id) const {
  const uint32_t place = recorder_.place();
  const uint32_t need = next_need(graph, id);
  const auto size = static_cast<double>(graph[id].size);
  // What is never needed is as good as infinitely far away.
  const auto distance = static_cast<double>(
      need == Future::kNever
          ? (future_->length() + 1) << 20
          : future_->time_at(need) - future_->time_at(place) + 1);
  const uint32_t value = recorder_.value_of(graph, id);
  const double bias =
      value < tuning_->bias.size() ? tuning_->bias[value] : 0.0F;
  const double logarithm =
      tuning_->cost * std::log(static_cast<double>(cost(graph, id))) -
      tuning_->size * std::log(size) -
      tuning_->distance * std::log(std::max(distance, 1.0)) + bias;
  return std::exp(std::clamp(logarithm, -600.0, 600.0));
}

bool NextUsePolicy::keeps(
    const OpGraph& graph,
    VersionId id,
    bool /*was_replayed*/) const {
  return tuning_->keeps && has_absent_reader(graph, id) &&
      next_need(graph, id) != Future::kNever;
}

uint32_t NextUsePolicy::next_need(const OpGraph& graph, VersionId id) const {
  const uint32_t place = recorder_.place();
  uint32_t need = Future::kNever;
  ++mark_;
  reached_.assign(1, id);
  for (size_t i = 0; i < reached_.size() && i < kMostReached; ++i) {
    const VersionId at = reached_[i];
    const uint32_t value = recorder_.value_of(graph, at);
    if (value < future_->values.size()) {
      need = std::min(need, future_->next_use(value, place));
    }
    for (const OpId reader : graph[at].readers) {
      for (const VersionId output : graph[reader].outputs) {
        if (!output || !is_absent(graph[output])) {
          continue;
        }
        if (output.index >= marks_.size()) {
          marks_.resize(std::max<size_t>(output.index + 1, 2 * marks_.size()));
        }
        if (marks_[output.index] != mark_) {
          marks_[output.index] = mark_;
          reached_.push_back(output);
        }
      }
    }
  }
  return need;
}

void NextUsePolicy::drain_lowered(
    const OpGraph& graph,
    std::vector<VersionId>& lowered) {
  NeighborhoodPolicy::drain_lowered(graph, lowered);
  read_.drain(lowered);
}

void NextUsePolicy::restart(
    std::shared_ptr<const Future> future,
    std::shared_ptr<const Tuning> tuning) {
  recorder_.restart();
  expect(std::move(future), std::move(tuning));
}

void NextUsePolicy::expect(
    std::shared_ptr<const Future> future,
    std::shared_ptr<const Tuning> tuning) {
  future_ = std::move(future);
  tuning_ = std::move(tuning);
  is_on_course_ = true;
}

void NextUsePolicy::plan_placement(PlacementPlan& plan) const {
  const Foreseen& foreseen = tuning_->foreseen;
  const uint32_t place = recorder_.place();
  plan.exists = !foreseen.evicted_at.empty();
  if (!plan.exists || place > foreseen.until || place >= future_->ops.size()) {
    return;
  }
  const Future::Op& op = future_->ops[place];
  for (uint32_t i = 0; i < op.value_count; ++i) {
    const uint32_t value = op.first_value + i;
    if (foreseen.fate(value) == Foreseen::kStays) {
      plan.staying.push_back(future_->values[value].size);
    }
  }
}

bool NextUsePolicy::lets_go(const OpGraph& graph, VersionId id) const {
  const Foreseen& foreseen = tuning_->foreseen;
  const uint32_t value = recorder_.value_of(graph, id);
  const uint32_t place = recorder_.place();
  const uint32_t fate = foreseen.fate(value);
  return fate != Foreseen::kStays && fate != Foreseen::kEither &&
      place <= foreseen.until &&
      future_->next_use(value, place) == future_->next_use(value, fate);
}

void NextUsePolicy::on_captured(const OpGraph& graph, OpId op) {
  const uint32_t place = recorder_.place();
  recorder_.captured(graph, op);
  check_course(place);
  NeighborhoodPolicy::on_captured(graph, op);
  read_.add(graph[op].inputs);
}

void NextUsePolicy::on_unrecorded(
    const OpGraph& graph,
    const UnrecordedOp& op) {
  const uint32_t place = recorder_.place();
  recorder_.unrecorded(graph, op);
  check_course(place);
  read_.add(op.inputs);
}

void NextUsePolicy::check_course(uint32_t place) {
  is_on_course_ = is_on_course_ && place < future_->ops.size() &&
      recorder_.future().fingerprint() == future_->ops[place].fingerprint;
}

void NextUsePolicy::on_read(const OpGraph& graph, VersionId id) {
  recorder_.read(graph, id);
  read_.add(id);
}

void NextUsePolicy::on_evicted(const OpGraph& graph, VersionId id) {
  NeighborhoodPolicy::on_evicted(graph, id);
  Past* const past = past_of(graph, id);
  if (past != nullptr && past->returns == 0) {
    past->evicted_at = recorder_.place();
  }
}

void NextUsePolicy::on_rematerialized(const OpGraph& graph, VersionId id) {
  NeighborhoodPolicy::on_rematerialized(graph, id);
  Past* const past = past_of(graph, id);
  if (past != nullptr) {
    ++past->returns;
  }
}

NextUsePolicy::Past* NextUsePolicy::past_of(
    const OpGraph& graph,
    VersionId id) {
  const uint32_t value = pasts_ == nullptr ? FutureRecorder::kUnknown
                                           : recorder_.value_of(graph, id);
  if (value == FutureRecorder::kUnknown) {
    return nullptr;
  }
  if (value >= pasts_->size()) {
    pasts_->resize(value + 1);
  }
  return &(*pasts_)[value];
}

} // namespace c10::remat
