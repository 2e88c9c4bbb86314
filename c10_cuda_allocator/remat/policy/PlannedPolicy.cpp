#include "PlannedPolicy.h"

namespace c10::remat {

namespace {

// The best single choice for the published traces; see
// docs/design/policies.md.
NextUsePolicy::Tuning default_tuning() {
  NextUsePolicy::Tuning tuning;
  tuning.cost = 0.7;
  tuning.distance = 0.7;
  return tuning;
}

} // namespace

PlannedPolicy::PlannedPolicy()
    : last_(std::make_shared<Future>()),
      tuning_(std::make_shared<NextUsePolicy::Tuning>(default_tuning())),
      iteration_(std::make_unique<NextUsePolicy>(last_, tuning_)) {}

double PlannedPolicy::weight(const OpGraph& graph, VersionId id) const {
  return is_following() ? iteration_->weight(graph, id)
                        : fallback_.weight(graph, id);
}

bool PlannedPolicy::keeps(const OpGraph& graph, VersionId id, bool was_replayed)
    const {
  return is_following() ? iteration_->keeps(graph, id, was_replayed)
                        : fallback_.keeps(graph, id, was_replayed);
}

void PlannedPolicy::drain_lowered(
    const OpGraph& graph,
    std::vector<VersionId>& lowered) {
  fallback_.drain_lowered(graph, lowered);
}

void PlannedPolicy::on_captured(const OpGraph& graph, OpId op) {
  fallback_.on_captured(graph, op);
  for (const VersionId output : graph[op].outputs) {
    if (output && graph[output].epoch != epoch_) {
      epoch_ = graph[output].epoch;
      begin_iteration(graph);
      break;
    }
  }
  const bool was_following = is_following();
  iteration_->on_captured(graph, op);
  changes_ += was_following != is_following();
}

void PlannedPolicy::begin_iteration(const OpGraph& graph) {
  FutureRecorder& recorder = iteration_->recorder();
  if (recorder.place() >= kShortest) {
    recorder.finish(graph);
    last_ = std::make_shared<const Future>(recorder.take());
  }
  iteration_ = std::make_unique<NextUsePolicy>(last_, tuning_);
  ++changes_;
}

void PlannedPolicy::on_read(const OpGraph& graph, VersionId id) {
  iteration_->on_read(graph, id);
}

void PlannedPolicy::on_evicted(const OpGraph& graph, VersionId id) {
  fallback_.on_evicted(graph, id);
  iteration_->on_evicted(graph, id);
}

void PlannedPolicy::on_rematerialized(const OpGraph& graph, VersionId id) {
  fallback_.on_rematerialized(graph, id);
  iteration_->on_rematerialized(graph, id);
}

void PlannedPolicy::on_op_forgotten(
    const OpGraph& graph,
    OpId op,
    const OpRecord& record) {
  fallback_.on_op_forgotten(graph, op, record);
  iteration_->on_op_forgotten(graph, op, record);
}

void PlannedPolicy::on_output_forgotten(const OpGraph& graph, OpId op) {
  fallback_.on_output_forgotten(graph, op);
  iteration_->on_output_forgotten(graph, op);
}

} // namespace c10::remat
