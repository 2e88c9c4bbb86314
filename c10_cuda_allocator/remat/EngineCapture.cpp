#include "Engine.h"

#include "policy/PlannedPolicy.h"

#include <algorithm>

// Engine's members for what an op has done.

namespace c10::remat {

namespace {

// The policy hears of the free bytes once in so many ops, and whenever there
// are too few.
constexpr uint32_t kOpsPerReport = 32;

} // namespace

// Note [State carried across updates]
// What is written in place and was there before the last parameter was updated
// is state that training carries along (momentum, moving averages, sums). To
// replay it would need the gradients of every step since. A write to it is
// therefore not recorded, and it is a leaf from its second update on.

// Note [What gradients are read for]
// Gradients go before the next backward pass, and what was made from them
// becomes a leaf then unless it has much more bytes. Evicted until then, it
// would keep them: momentum cloned from gradients would hold as many bytes as
// it has, and come back between leaves, where nothing can be evicted for it. So
// it is a leaf at once.
bool Engine::is_made_from_gradients(const OpCapture& capture) const {
  const OpGraph& graph = state_.graph;
  Bytes gradients = 0;
  for (const VersionId id : capture.inputs) {
    gradients += graph[id].is_gradient ? graph[id].size : 0;
  }
  if (gradients == 0) {
    return false;
  }
  Bytes made = 0;
  for (const OpCapture::Fresh& fresh : capture.fresh) {
    made += fresh.size;
  }
  for (const Write& write : capture.writes) {
    made += write.side_effect ? 0 : graph[write.version].size;
  }
  return !LeafCutter::is_worth_keeping(gradients, made);
}

// Of an op whose writes have not replaced anything yet.
bool Engine::is_replayable(const OpCapture& capture) const {
  const OpGraph& graph = state_.graph;
  if (capture.payload == nullptr || is_made_from_gradients(capture)) {
    return false;
  }
  for (const VersionId id : capture.inputs) {
    // A leaf that another thread has escaped meanwhile, or is writing.
    const auto own = std::count_if(
        capture.writes.begin(), capture.writes.end(), [&](const Write& write) {
          return write.version == id;
        });
    if (graph.is_leaf(id) && (!graph[id].resident || graph[id].writers > own)) {
      return false;
    }
  }
  for (const Write& write : capture.writes) {
    const VersionId old = write.version;
    const bool is_operand =
        std::find(capture.inputs.begin(), capture.inputs.end(), old) !=
        capture.inputs.end();
    // A leaf's old bytes are gone for good: nothing can do this write again.
    const bool reads_lost_bytes = is_operand && graph.is_leaf(old);
    // See Note [State carried across updates].
    const bool is_carried =
        graph.is_leaf(old) || graph[old].epoch != state_.epoch;
    const bool needs_old = !write.overwrites_all && !write.side_effect;
    if (write.is_parameter || reads_lost_bytes || (needs_old && is_carried)) {
      return false;
    }
  }
  return true;
}

// Gives each storage that the op created or wrote its version, and `record`,
// if the op is replayable, its outputs.
VersionIds Engine::add_results(
    OpCapture& capture,
    bool replayable,
    OpRecord& record) {
  OpGraph& graph = state_.graph;
  VersionIds results;
  for (const OpCapture::Fresh& fresh : capture.fresh) {
    const VersionId id =
        graph.add_version(fresh.size, fresh.holder, state_.now);
    graph.own(id);
    graph[id].resident = true;
    graph[id].hidden = true;
    state_.resident += fresh.size;
    graph[id].epoch = state_.epoch;
    state_.storage.set_version(fresh.holder, id);
    results.push_back(id);
    record.outputs.push_back(id);
  }
  for (const Write& write : capture.writes) {
    const VersionId old = write.version;
    const VersionId id = replace_written(old);
    results.push_back(id);
    if (write.side_effect) {
      continue;
    }
    if (!write.overwrites_all && replayable) {
      auto input = std::find(capture.inputs.begin(), capture.inputs.end(), old);
      if (input == capture.inputs.end()) {
        ++graph[old].pins; // as begin_op did for the other inputs
        capture.inputs.push_back(old);
        input = std::prev(capture.inputs.end());
      }
      record.overwrites.push_back(
          {static_cast<uint32_t>(input - capture.inputs.begin()),
           static_cast<uint32_t>(record.outputs.size())});
    }
    record.outputs.push_back(id);
  }
  return results;
}

// Null if it is not to be replayed.
OpId Engine::record_op(
    OpCapture& capture,
    bool replayable,
    CostNs cost,
    OpRecord&& record) {
  if (!replayable || record.outputs.empty()) {
    if (*capture.name != '\0') { // else a write from outside any op
      state_.policy->on_unrecorded(
          state_.graph, {capture.name, cost, capture.inputs});
    }
    return {};
  }
  record.inputs = capture.inputs;
  record.cost = cost;
  record.name = capture.name;
  record.payload = std::move(capture.payload);
  const OpId op = state_.graph.add_op(std::move(record));
  state_.policy->on_captured(state_.graph, op);
  state_.trace.set_log(state_.policy->program_log());
  return op;
}

VersionIds Engine::end_op(OpCapture&& capture) {
  Garbage garbage;
  Lock lock(state_.mutex);
  OpGraph& graph = state_.graph;
  --ops_in_flight_;
  ++state_.counters.ops_captured;
  if (capture.not_replayable != nullptr) {
    state_.counters.count_not_replayable(capture.not_replayable);
  }
  const CostNs cost =
      state_.costs.update(capture.signature, capture.cost, capture.estimate);
  state_.now += cost;

  const bool replayable = is_replayable(capture);
  VersionIds overwritten;
  bool updates_parameter = false;
  for (const Write& write : capture.writes) {
    overwritten.push_back(write.version);
    updates_parameter |= write.is_parameter;
  }
  state_.epoch += updates_parameter;

  OpRecord record;
  const VersionIds results = add_results(capture, replayable, record);
  const OpId op = record_op(capture, replayable, cost, std::move(record));
  if (state_.trace.is_on()) {
    state_.trace.captured(
        graph,
        op,
        {capture.name, cost, &capture.inputs, &overwritten, &results});
  }
  for (const VersionId id : results) {
    state_.index->refresh(id);
  }
  for (const VersionId id : capture.inputs) {
    graph[id].last_access = state_.now;
    state_.let_go(id, garbage);
  }
  for (const VersionId id : overwritten) {
    finish_replaced(id, garbage);
  }
  for (const VersionId id : results) {
    // The op may have given the storage another block.
    state_.release_if_unused(id, garbage);
  }
  state_.settle(garbage);
  if (op) {
    note_iteration();
  }
  if (history_bound_.is_due()) {
    history_bound_.enforce(garbage);
  }
  if (++ops_since_report_ >= kOpsPerReport) {
    ops_since_report_ = 0;
    state_.report_residual();
  }
  if (state_.config.chaos) {
    evictor_.evict_all();
  }
  return results;
}

// As in Note [Iterations]: updates with few ops between are one.
void Engine::note_iteration() {
  if (epoch_recorded_ != state_.epoch) {
    if (recorded_in_epoch_ >= PlannedPolicy::kShortest && had_requests_) {
      evictor_.settle();
      had_requests_ = false;
    }
    epoch_recorded_ = state_.epoch;
    recorded_in_epoch_ = 0;
  }
  ++recorded_in_epoch_;
}

VersionIds Engine::abort_op(const VersionIds& inputs, const Writes& writes) {
  Garbage garbage;
  Lock lock(state_.mutex);
  --ops_in_flight_;
  VersionIds results;
  for (const Write& write : writes) {
    results.push_back(replace_written(write.version));
    if (state_.trace.is_on()) {
      state_.trace.death(state_.graph, write.version);
      state_.trace.version(state_.graph, results.back());
    }
    finish_replaced(write.version, garbage);
    state_.release_if_unused(results.back(), garbage);
  }
  state_.unpin(inputs, garbage);
  return results;
}

} // namespace c10::remat
