#include "Engine.h"

#include "BlockingSection.h"
#include "Dependents.h"
#include "policy/PolicyRegistry.h"

#include <algorithm>
#include <unordered_map>

namespace c10::remat {

namespace {

// A history shorter than this is not worth looking at; see Note [Bounded
// history].
constexpr size_t kFirstHistoryCheck = 1024;

// A leaf is kept for replay only if what rests on it has this many times its
// bytes.
constexpr Bytes kLeastSupport = 4;

} // namespace

// Note [Bounded history]
// A record keeps the versions that it reads, and so their records: a value
// carried from step to step (momentum, running sums, the state of a recurrent
// network) would keep all steps. Each time the number of records has doubled,
// every record whose owned outputs rest on more than `longest_history` dead
// intermediates in a row, or on more held bytes than they have themselves, is
// cut: its outputs become leaves, at once where they are resident, otherwise
// as soon as they are. Doubling makes the cost per op constant.

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
    : state_(config, make_policy(config.policy), storage, device, replayer),
      evictor_(state_),
      rematerializer_(state_),
      next_history_check_(kFirstHistoryCheck) {}

Engine::ReplayLock Engine::take_replay_lock(Lock& lock) {
  lock.unlock();
  ReplayLock replay_lock(replay_mutex_, std::defer_lock);
  lock_in_blocking_section(replay_lock);
  lock.lock();
  return replay_lock;
}

void Engine::let_go(VersionId id, Garbage& garbage) {
  --state_.graph[id].pins;
  state_.release_if_unused(id, garbage);
}

void Engine::unpin_all(
    const VersionIds& ids,
    Garbage& garbage) {
  for (const VersionId id : ids) {
    let_go(id, garbage);
  }
  state_.settle(garbage);
}

void Engine::pin_resident(
    const VersionIds& ids,
    Lock& lock,
    Garbage& garbage) {
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
    const ReplayLock replay_lock = take_replay_lock(lock);
    rematerializer_.bring_back(ids, lock, garbage);
  } catch (...) {
    unpin_all(ids, garbage);
    throw;
  }
}

void Engine::begin_op(
    const VersionIds& inputs,
    const Writes& writes) {
  Garbage garbage;
  Lock lock(state_.mutex);
  VersionIds pinned = inputs;
  for (const Write& write : writes) {
    pinned.push_back(write.version);
  }
  pin_resident(pinned, lock, garbage);
  if (state_.active_replays == 0) {
    for (const VersionId id : inputs) {
      const OpId producer = state_.graph[id].producer;
      if (producer && state_.graph[producer].cut_pending) {
        state_.make_leaf(id, garbage);
      }
    }
    state_.settle(garbage);
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
        state_.trace.leaf_write(state_.graph, write.version);
      }
    }
  }
  if (!cuts_leaf) {
    ++ops_in_flight_;
    return;
  }
  try {
    const ReplayLock replay_lock = take_replay_lock(lock);
    // A cut may make a leaf of another that is to be written.
    std::vector<bool> is_cut(writes.size());
    for (bool again = true; again;) {
      again = false;
      for (size_t i = 0; i < writes.size(); ++i) {
        if (!is_cut[i] && state_.graph.is_leaf(writes[i].version)) {
          is_cut[i] = again = true;
          if (!take_snapshot(writes[i].version, lock)) {
            cut_dependents(writes[i].version, lock, garbage);
          }
        }
      }
    }
  } catch (...) {
    unpin_all(pinned, garbage);
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
  to.owned = from.owned;
  to.escaped = from.escaped;
  to.user_pins = from.user_pins;
  to.resident = true;
  from.owned = false;
  from.resident = false;
  from.user_pins = 0;
  from.holder = nullptr;
  state_.index->remove(old);
  --from.pins;
  const auto snapshot = snapshots_.find(old);
  if (snapshot != snapshots_.end()) {
    state_.storage.adopt(from, std::move(snapshot->second));
    from.resident = true;
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

// Note [Leaves that are written or die]
// What was computed from a leaf can be replayed only while its bytes are there.
// Where they are few beside what rests on them they are kept for that: a copy
// when the leaf is about to be written, the bytes themselves when its storage
// has died. Otherwise its dependents become leaves, those evicted after coming
// back, and nothing is kept that the program has given back.
bool Engine::is_worth_keeping(VersionId id) const {
  const OpGraph& graph = state_.graph;
  Bytes dependents = 0;
  const Dependents found = find_dependents(graph, id);
  for (const auto* list : {&found.resident, &found.evicted}) {
    for (const VersionId dependent : *list) {
      dependents += graph[dependent].owned ? graph[dependent].size : 0;
    }
  }
  // Leaves that the same ops read count as one: each alone may look small.
  Bytes kept = graph[id].size;
  for (const OpId reader : graph[id].readers) {
    for (const VersionId input : graph[reader].inputs) {
      const StorageVersion& version = graph[input];
      kept += input != id && !version.owned && !version.producer ? version.size
                                                                 : 0;
    }
  }
  return kept <= dependents / kLeastSupport;
}

// Needs the replay lock; `id` is pinned.
bool Engine::take_snapshot(VersionId id, Lock& lock) {
  if (!is_worth_keeping(id)) {
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

VersionIds Engine::end_op(OpCapture&& capture) {
  Garbage garbage;
  Lock lock(state_.mutex);
  OpGraph& graph = state_.graph;
  --ops_in_flight_;
  ++state_.counters.ops_captured;
  const CostNs cost = state_.costs.update(capture.signature, capture.cost);
  state_.now += cost;
  if (capture.not_replayable != nullptr) {
    ++state_.counters.not_replayable[capture.not_replayable];
  }

  OpRecord record;
  VersionIds results;
  for (const OpCapture::Fresh& fresh : capture.fresh) {
    const VersionId id =
        graph.add_version(fresh.size, fresh.holder, state_.now);
    graph[id].owned = true;
    graph[id].resident = true;
    graph[id].epoch = state_.epoch;
    results.push_back(id);
    record.outputs.push_back(id);
  }
  bool replayable = capture.payload != nullptr;
  for (const VersionId id : capture.inputs) {
    // A leaf that another thread has escaped meanwhile.
    replayable &= !graph.is_leaf(id) || graph[id].resident;
  }
  bool updates_parameter = false;
  VersionIds overwritten;
  for (const Write& write : capture.writes) {
    const VersionId old = write.version;
    // A leaf's old bytes are gone for good: nothing can do this write again.
    // And see Note [State carried across updates].
    const bool is_operand =
        std::find(capture.inputs.begin(), capture.inputs.end(), old) !=
        capture.inputs.end();
    replayable &= !is_operand || !graph.is_leaf(old);
    replayable &= write.overwrites_all || write.side_effect ||
        (!graph.is_leaf(old) && graph[old].epoch == state_.epoch);
    replayable &= !write.is_parameter;
    updates_parameter |= write.is_parameter;
  }
  state_.epoch += updates_parameter;
  for (const Write& write : capture.writes) {
    const VersionId old = write.version;
    const VersionId id = replace_written(old);
    results.push_back(id);
    overwritten.push_back(old);
    if (write.side_effect) {
      continue;
    }
    if (!write.overwrites_all && replayable) {
      auto input =
          std::find(capture.inputs.begin(), capture.inputs.end(), old);
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
  OpId op;
  if (replayable && !record.outputs.empty()) {
    record.inputs = capture.inputs;
    record.cost = cost;
    record.name = capture.name;
    record.payload = std::move(capture.payload);
    op = graph.add_op(std::move(record));
    state_.policy->on_captured(graph, op);
  }
  if (state_.trace.is_on()) {
    trace_op(op, capture, cost, results);
  }
  for (const VersionId id : results) {
    state_.index->refresh(id);
  }
  for (const VersionId id : capture.inputs) {
    graph[id].last_access = state_.now;
    let_go(id, garbage);
  }
  for (const VersionId id : overwritten) {
    finish_replaced(id, garbage);
  }
  for (const VersionId id : results) {
    // The op may have given the storage another block.
    state_.release_if_unused(id, garbage);
  }
  state_.settle(garbage);
  if (graph.op_count() >= next_history_check_ && state_.active_replays == 0) {
    bound_history(garbage);
  }
  if (state_.config.chaos) {
    evictor_.evict_all();
  }
  return results;
}

void Engine::trace_op(
    OpId op,
    const OpCapture& capture,
    CostNs cost,
    const VersionIds& results) {
  const OpGraph& graph = state_.graph;
  // What a storage held before ends with the op if that reads it, else before
  // it, and needs no line where the op's says so.
  std::vector<VersionId> end_with_op;
  for (const Write& write : capture.writes) {
    const bool is_read =
        std::find(
            capture.inputs.begin(), capture.inputs.end(), write.version) !=
        capture.inputs.end();
    if (!is_read) {
      state_.trace.death(graph, write.version);
    } else if (!op || !overwrites(graph[op], write.version)) {
      end_with_op.push_back(write.version);
    }
  }
  if (op) {
    state_.trace.op(graph, op);
  } else {
    state_.trace.unrecorded_op(graph, capture.name, cost, capture.inputs);
  }
  for (const VersionId id : end_with_op) {
    state_.trace.death(graph, id);
  }
  for (const VersionId id : results) {
    if (graph.is_leaf(id)) {
      state_.trace.version(graph, id);
    }
  }
}

VersionIds Engine::abort_op(
    const VersionIds& inputs,
    const Writes& writes) {
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
  unpin_all(inputs, garbage);
  return results;
}

void Engine::ensure_resident(VersionId id) {
  Garbage garbage;
  Lock lock(state_.mutex);
  pin_resident({id}, lock, garbage);
  state_.graph[id].last_access = state_.now;
  if (state_.trace.is_on()) {
    state_.trace.access(state_.graph, id);
  }
}

void Engine::unpin(VersionId id) {
  Garbage garbage;
  Lock lock(state_.mutex);
  unpin_all({id}, garbage);
}

void Engine::storage_died(VersionId id) {
  Garbage garbage;
  Lock lock(state_.mutex);
  StorageVersion& version = state_.graph[id];
  version.owned = false;
  version.user_pins = 0;
  if (state_.trace.is_on()) {
    state_.trace.death(state_.graph, id);
  }
  state_.storage.disown(version);
  if (!version.resident) {
    state_.evicted_bytes -= version.size;
  } else if (version.producer) {
    state_.policy->on_evicted(state_.graph, id); // no longer in use
  }
  state_.index->remove(id);
  if (!version.producer && !version.readers.empty()) {
    cut_from_dead_leaf(id, garbage);
  }
  state_.release_if_unused(id, garbage);
  state_.settle(garbage);
}

// Those that are evicted become leaves when they next come back, until when
// the leaf is held.
void Engine::cut_from_dead_leaf(VersionId id, Garbage& garbage) {
  if (state_.active_replays != 0 || is_worth_keeping(id)) {
    return; // held until memory is short or its dependents are gone
  }
  const Dependents found = find_dependents(state_.graph, id);
  for (const VersionId evicted : found.evicted) {
    state_.graph[state_.graph[evicted].producer].cut_pending = true;
  }
  for (const VersionId resident : found.resident) {
    state_.make_leaf(resident, garbage);
  }
  state_.settle(garbage);
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
  state_.policy->on_residual(0, budget);
  Bytes freed = evictor_.evict_bytes(wanted + headroom);
  if (freed < wanted) {
    freed += release_held(wanted - freed, garbage);
  }
  return freed;
}

// Under pressure a held leaf is worth less than what rests on it: those become
// leaves and its bytes are given back.
Bytes Engine::release_held(Bytes wanted, Garbage& garbage) {
  std::vector<VersionId> held;
  state_.graph.for_each_version([&](VersionId id) {
    const StorageVersion& version = state_.graph[id];
    if (version.resident && !version.owned && !version.producer &&
        version.pins == 0 && version.reservations == 0) {
      held.push_back(id);
    }
  });
  Bytes freed = 0;
  for (const VersionId id : held) {
    if (freed >= wanted) {
      break;
    }
    const Bytes size = state_.graph[id].size;
    if (state_.graph[id].alive && try_cut_dependents(id, garbage)) {
      state_.release_if_unused(id, garbage);
      state_.settle(garbage);
      freed += size;
    }
  }
  return freed;
}

bool Engine::try_cut_dependents(VersionId id, Garbage& garbage) {
  if (state_.active_replays != 0) {
    return false;
  }
  const Dependents found = find_dependents(state_.graph, id);
  if (!found.evicted.empty()) {
    return false;
  }
  // An op that is running may be about to write over what it has pinned, and
  // has seen to the readers of leaves only.
  for (const VersionId dependent : found.resident) {
    if (state_.graph[dependent].pins != 0) {
      return false;
    }
  }
  for (const VersionId dependent : found.resident) {
    state_.make_leaf(dependent, garbage);
  }
  state_.settle(garbage);
  return true;
}

void Engine::cut_dependents(VersionId id, Lock& lock, Garbage& garbage) {
  ++state_.graph[id].pins;
  try {
    for (;;) {
      const Dependents found = find_dependents(state_.graph, id);
      for (const VersionId dependent : found.resident) {
        state_.make_leaf(dependent, garbage);
      }
      state_.settle(garbage);
      if (found.evicted.empty()) {
        break;
      }
      const std::vector<VersionId> next{found.evicted.front()};
      ++state_.graph[next[0]].pins;
      try {
        rematerializer_.bring_back(next, lock, garbage);
      } catch (...) {
        unpin_all(next, garbage);
        throw;
      }
      state_.make_leaf(next[0], garbage);
      unpin_all(next, garbage);
    }
  } catch (...) {
    unpin_all({id}, garbage);
    throw;
  }
  unpin_all({id}, garbage);
}

bool Engine::declare_parameter(VersionId id) {
  Garbage garbage;
  const Lock lock(state_.mutex);
  const StorageVersion& version = state_.graph[id];
  if (!version.producer) {
    return true;
  }
  if (!version.resident || state_.active_replays != 0 ||
      !state_.graph[version.producer].inputs.empty()) {
    return false;
  }
  state_.make_leaf(id, garbage);
  state_.settle(garbage);
  return true;
}

VersionId Engine::add_leaf(Bytes size, void* holder) {
  const Lock lock(state_.mutex);
  const VersionId id = state_.graph.add_version(size, holder, state_.now);
  state_.graph[id].owned = true;
  state_.graph[id].resident = true;
  if (state_.trace.is_on()) {
    state_.trace.version(state_.graph, id);
  }
  return id;
}

VersionId Engine::escape(VersionId id, bool for_good) {
  Garbage garbage;
  Lock lock(state_.mutex);
  const ReplayLock replay_lock = take_replay_lock(lock);
  pin_resident({id}, lock, garbage);
  if (state_.trace.is_on()) {
    state_.trace.leaf_write(state_.graph, id);
  }
  VersionId escaped = id;
  try {
    if (!state_.graph.is_leaf(id) || take_snapshot(id, lock)) {
      // Its readers keep the version that they have read.
      escaped = replace_written(id);
      finish_replaced(id, garbage);
    } else {
      cut_dependents(id, lock, garbage);
      unpin_all({id}, garbage);
    }
  } catch (...) {
    unpin_all({id}, garbage);
    throw;
  }
  state_.graph[escaped].escaped |= for_good;
  state_.index->refresh(escaped);
  state_.settle(garbage);
  return escaped;
}

void Engine::pin_by_user(VersionId id) {
  const Lock lock(state_.mutex);
  ++state_.graph[id].user_pins;
}

void Engine::unpin_by_user(VersionId id) {
  const Lock lock(state_.mutex);
  StorageVersion& version = state_.graph[id];
  if (version.user_pins == 0) {
    throw UsageError("remat: unpin() without a matching pin()");
  }
  --version.user_pins;
}

void Engine::retire() {
  Garbage garbage;
  Lock lock(state_.mutex);
  const ReplayLock replay_lock = take_replay_lock(lock);
  // Stays pinned until the end: what came back must not be evicted for what
  // comes back next.
  std::vector<VersionId> pinned;
  for (;;) {
    std::vector<VersionId> resident;
    VersionId evicted;
    state_.graph.for_each_version([&](VersionId id) {
      const StorageVersion& version = state_.graph[id];
      if (version.resident && version.producer) {
        resident.push_back(id);
      } else if (version.owned && !version.resident) {
        evicted = evicted ? evicted : id;
      }
    });
    if (!evicted) {
      for (const VersionId id : resident) {
        if (state_.graph[id].alive) {
          state_.make_leaf(id, garbage);
        }
      }
      break;
    }
    ++state_.graph[evicted].pins;
    pinned.push_back(evicted);
    try {
      rematerializer_.bring_back({evicted}, lock, garbage);
    } catch (...) {
      unpin_all(pinned, garbage);
      throw;
    }
  }
  unpin_all(pinned, garbage);
}

void Engine::bound_history(Garbage& garbage) {
  OpGraph& graph = state_.graph;
  std::vector<OpId> ops;
  graph.for_each_op([&](OpId id) { ops.push_back(id); });
  std::sort(ops.begin(), ops.end(), [&](OpId a, OpId b) {
    return graph[a].sequence < graph[b].sequence;
  });
  struct History {
    uint32_t length = 0;
    Bytes held = 0;
  };
  std::unordered_map<OpId, History> histories;
  std::vector<OpId> too_long;
  for (const OpId op : ops) {
    History& history = histories[op];
    history.length = 1;
    Bytes owned = 0;
    for (const VersionId input : graph[op].inputs) {
      const StorageVersion& version = graph[input];
      if (version.owned) {
        continue;
      }
      if (!version.producer) {
        history.held += version.size;
        continue;
      }
      const History& before = histories[version.producer];
      history.length = std::max(history.length, before.length + 1);
      history.held += before.held;
    }
    for (const VersionId output : graph[op].outputs) {
      owned += output && graph[output].owned ? graph[output].size : 0;
    }
    if (owned != 0 &&
        (history.length > state_.config.longest_history ||
         history.held > owned)) {
      too_long.push_back(op);
      history = History{};
    }
  }
  for (const OpId op : too_long) {
    const std::vector<VersionId> outputs = graph[op].outputs;
    for (const VersionId output : outputs) {
      graph[op].cut_pending |=
          output && graph[output].owned && !graph[output].resident;
    }
    for (const VersionId output : outputs) {
      if (output && graph[output].owned && graph[output].resident &&
          graph[output].pins == 0) {
        state_.make_leaf(output, garbage);
      }
    }
  }
  state_.settle(garbage);
  next_history_check_ = std::max(kFirstHistoryCheck, 2 * graph.op_count());
}

void Engine::set_budget(Bytes budget) {
  const Lock lock(state_.mutex);
  state_.config.budget = budget;
}

void Engine::configure(const Config& config) {
  auto policy = make_policy(config.policy);
  const Lock lock(state_.mutex);
  if (config.policy != state_.config.policy) {
    state_.change_policy(std::move(policy));
  }
  state_.config = config;
}

Config Engine::config() const {
  const Lock lock(state_.mutex);
  return state_.config;
}

bool Engine::evict(VersionId id) {
  const Lock lock(state_.mutex);
  if (!state_.graph.is_evictable(id)) {
    return false;
  }
  state_.evict(id);
  return true;
}

uint64_t Engine::evict_all() {
  const Lock lock(state_.mutex);
  const uint64_t before = state_.counters.evictions;
  evictor_.evict_all();
  return state_.counters.evictions - before;
}

bool Engine::is_resident(VersionId id) const {
  const Lock lock(state_.mutex);
  return state_.graph[id].resident;
}

Counters Engine::counters() const {
  const Lock lock(state_.mutex);
  return state_.counters;
}

void Engine::reset_counters() {
  const Lock lock(state_.mutex);
  state_.counters = Counters{};
}

void Engine::count_overhead(int64_t ns) {
  const Lock lock(state_.mutex);
  state_.counters.overhead_ns += ns;
}

void Engine::count_fault() {
  const Lock lock(state_.mutex);
  ++state_.counters.faults;
}

void Engine::count_out_of_memory() {
  const Lock lock(state_.mutex);
  ++state_.counters.out_of_memory;
}

void Engine::count_not_replayable(const char* reason) {
  const Lock lock(state_.mutex);
  ++state_.counters.not_replayable[reason];
}

Census Engine::census() const {
  const Lock lock(state_.mutex);
  Census census;
  census.storages = state_.graph.version_count();
  census.op_records = state_.graph.op_count();
  state_.graph.for_each_version([&](VersionId id) {
    const StorageVersion& version = state_.graph[id];
    if (!version.owned) {
      census.held += version.resident ? version.size : 0;
      return;
    }
    if (!version.resident) {
      census.evicted += version.size;
      return;
    }
    census.resident += version.size;
    if (version.escaped) {
      census.escaped += version.size;
    } else if (!version.producer) {
      census.leaf += version.size;
    } else if (version.user_pins != 0) {
      census.pinned_by_user += version.size;
    } else if (version.pins != 0) {
      census.pinned_by_ops += version.size;
    } else {
      census.evictable += version.size;
    }
  });
  return census;
}

MemoryBreakdown Engine::breakdown() const {
  return {config().budget, state_.device.usage(), census()};
}

void Engine::start_trace(const std::string& path) {
  const Lock lock(state_.mutex);
  state_.trace.start(path, state_.graph);
}

void Engine::stop_trace() {
  const Lock lock(state_.mutex);
  state_.trace.stop();
}

void Engine::check_invariants() const {
  const Lock lock(state_.mutex);
  state_.graph.check_invariants();
  state_.index->check_invariants();
}

void Engine::lock_for_fork() {
  replay_mutex_.lock();
  state_.mutex.lock();
}

void Engine::unlock_in_parent() {
  state_.mutex.unlock();
  replay_mutex_.unlock();
}

void Engine::reset_in_child() {
  // A recursive mutex belongs to a thread id, which fork changes.
  new (&replay_mutex_) std::recursive_mutex;
  new (&state_.mutex) std::mutex;
  ops_in_flight_ = 0;
  state_.active_replays = 0;
  state_.config.budget = Config::kUnlimited;
  state_.config.chaos = false;
  state_.trace.abandon();
}

} // namespace c10::remat
