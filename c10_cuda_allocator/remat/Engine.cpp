#include "Engine.h"

#include "policy/PolicyRegistry.h"

#include <algorithm>

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

Engine::Engine(
    const Config& config,
    StoragePort& storage,
    DevicePort& device,
    ReplayPort& replayer)
    : Engine(config, make_policy(config.policy), storage, device, replayer) {}

Engine::Engine(
    const Config& config,
    std::unique_ptr<EvictionPolicy> policy,
    StoragePort& storage,
    DevicePort& device,
    ReplayPort& replayer)
    : state_(config, std::move(policy), storage, device, replayer),
      evictor_(state_),
      rematerializer_(state_),
      cutter_(state_, rematerializer_),
      history_bound_(state_) {}

ReplayMutex::Lock Engine::take_replay_lock(Lock& lock) {
  lock.unlock();
  ReplayMutex::Lock replay_lock = replay_mutex_.lock();
  lock.lock();
  return replay_lock;
}

void Engine::pin_resident(const VersionIds& ids, Lock& lock, Garbage& garbage) {
  bool all_resident = true;
  for (const VersionId id : ids) {
    StorageVersion& version = state_.graph[id];
    ++version.pins;
    all_resident &= version.resident;
  }
  if (all_resident) {
    return;
  }
  try {
    const auto replay_lock = take_replay_lock(lock);
    std::vector<VersionId> wanted;
    for (const VersionId id : ids) {
      // Another thread may have written over a leaf while the lock was free.
      if (state_.graph[id].resident || !state_.graph.is_leaf(id)) {
        wanted.push_back(id);
      }
    }
    rematerializer_.bring_back(wanted, lock, garbage);
  } catch (...) {
    state_.unpin(ids, garbage);
    throw;
  }
}

VersionIds Engine::pin_held(
    const Holders& holders,
    Lock& lock,
    Garbage& garbage) {
  for (;;) {
    VersionIds held;
    for (void* const holder : holders) {
      held.push_back(state_.storage.version_of(holder));
    }
    pin_resident(held, lock, garbage);
    const bool current = std::equal(
        held.begin(),
        held.end(),
        holders.begin(),
        [&](VersionId id, void* holder) {
          return state_.storage.version_of(holder) == id;
        });
    if (current) {
      return held;
    }
    // Another thread has written to one of them during a replay.
    state_.unpin(held, garbage);
  }
}

void Engine::begin_op(
    const Holders& holders,
    VersionIds& inputs,
    Writes& writes,
    PlacementPlan* placement) {
  Garbage garbage;
  Lock lock(state_.mutex);
  if (placement != nullptr) {
    state_.policy->plan_placement(*placement);
  }
  inputs.clear();
  const VersionIds pinned = pin_held(holders, lock, garbage);
  const size_t reads = holders.size() - writes.size();
  for (size_t i = 0; i < holders.size(); ++i) {
    if (i < reads) {
      inputs.push_back(pinned[i]);
    } else {
      writes[i - reads].version = pinned[i];
    }
  }
  for (const Write& write : writes) {
    ++state_.graph[write.version].writers;
  }
  // Only now: what has come back may just have become a leaf.
  const bool cuts_leaf =
      std::any_of(writes.begin(), writes.end(), [&](const Write& write) {
        return state_.graph.is_leaf(write.version) &&
            !state_.graph[write.version].readers.empty();
      });
  if (state_.trace.is_on()) {
    for (const Write& write : writes) {
      if (state_.graph.is_leaf(write.version)) {
        state_.trace.leaf_write(
            state_.graph, write.version, write.is_parameter);
      }
    }
  }
  if (!cuts_leaf) {
    ++ops_in_flight_;
    return;
  }
  try {
    const auto replay_lock = take_replay_lock(lock);
    // A cut may make a leaf of another that is to be written.
    std::vector<bool> is_cut(writes.size());
    for (bool again = true; again;) {
      again = false;
      for (size_t i = 0; i < writes.size(); ++i) {
        if (!is_cut[i] && state_.graph.is_leaf(writes[i].version)) {
          is_cut[i] = again = true;
          if (!take_snapshot(writes[i].version, lock)) {
            cutter_.cut(writes[i].version, lock, garbage);
          }
        }
      }
    }
  } catch (...) {
    for (const Write& write : writes) {
      --state_.graph[write.version].writers;
    }
    state_.unpin(pinned, garbage);
    throw;
  }
  ++ops_in_flight_;
}

VersionId Engine::replace_written(VersionId old) {
  OpGraph& graph = state_.graph;
  const VersionId id =
      graph.add_version(graph[old].size, graph[old].holder, state_.now);
  graph[id].epoch = state_.epoch;
  StorageVersion& from = graph[old];
  StorageVersion& to = graph[id];
  to.escaped = from.escaped;
  to.hidden = from.hidden;
  to.is_gradient = from.is_gradient;
  to.user_pins = from.user_pins;
  to.resident = true;
  state_.resident += from.resident ? 0 : to.size;
  if (from.owned) {
    graph.own(id);
    graph.disown(old);
  }
  from.resident = false;
  from.user_pins = 0;
  from.writers -= from.writers > 0;
  from.holder = nullptr;
  if (to.holder != nullptr) { // null: another thread has written meanwhile
    state_.storage.set_version(to.holder, id);
  }
  state_.index->remove(old);
  --from.pins;
  const auto snapshot = snapshots_.find(old);
  if (snapshot != snapshots_.end()) {
    state_.storage.adopt(from, std::move(snapshot->second));
    from.resident = true;
    state_.resident += from.size;
    snapshots_.erase(snapshot);
  }
  return id;
}

void Engine::finish_replaced(VersionId old, Garbage& garbage) {
  if (state_.graph[old].producer) {
    state_.policy->on_evicted(state_.graph, old); // no longer in use
  }
  state_.graph.collect(old, garbage);
}

// Needs the replay lock; `id` is pinned.
bool Engine::take_snapshot(VersionId id, Lock& lock) {
  if (!cutter_.is_worth_keeping(id)) {
    return false;
  }
  const StorageVersion& version = state_.graph[id];
  lock.unlock();
  std::unique_ptr<Buffer> copy = state_.replayer.copy(version);
  lock.lock();
  if (copy == nullptr) {
    return false; // no memory for it
  }
  snapshots_[id] = std::move(copy);
  return true;
}

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
  constexpr uint32_t kShortest = 16;
  if (epoch_recorded_ != state_.epoch) {
    if (recorded_in_epoch_ >= kShortest && had_requests_) {
      evictor_.settle_leaves();
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

void Engine::storage_died(VersionId id) {
  Garbage garbage;
  Lock lock(state_.mutex);
  StorageVersion& version = state_.graph[id];
  state_.graph.disown(id);
  version.user_pins = 0;
  if (state_.trace.is_on()) {
    state_.trace.death(state_.graph, id);
  }
  state_.storage.disown(version);
  if (version.resident && version.producer) {
    state_.policy->on_evicted(state_.graph, id); // no longer in use
  }
  state_.index->remove(id);
  if (!version.producer && !version.readers.empty()) {
    cutter_.cut_from_dead(id, garbage);
  }
  state_.release_if_unused(id, garbage);
  state_.settle(garbage);
}

Bytes Engine::relieve_request(const MemoryRequest& request) noexcept {
  Garbage garbage;
  Lock lock(state_.mutex);
  if (state_.trace.is_on()) {
    state_.trace.pressure(request.shortage);
  }
  state_.report_pressure(/*needs_neighbors=*/true);
  had_requests_ = true;
  Bytes freed = evictor_.evict_for(request);
  if (freed == 0) {
    freed = cutter_.release_held(request.size, garbage);
  }
  return freed > 0 ? freed : evictor_.move_leaves(request);
}

Bytes Engine::relieve_pressure(Bytes wanted) noexcept {
  Garbage garbage;
  Lock lock(state_.mutex);
  const Bytes budget = state_.config.budget;
  const Bytes headroom = budget == Config::kUnlimited
      ? 0
      : static_cast<Bytes>(state_.config.headroom * budget);
  if (state_.trace.is_on()) {
    state_.trace.pressure(wanted);
  }
  state_.report_pressure();
  Bytes freed = evictor_.evict_bytes(wanted + headroom);
  if (freed < wanted) {
    freed += cutter_.release_held(wanted - freed, garbage);
  }
  return freed;
}

} // namespace c10::remat
