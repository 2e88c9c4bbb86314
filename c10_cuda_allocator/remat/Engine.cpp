#include "Engine.h"

#include "policy/PolicyRegistry.h"

#include <algorithm>

namespace c10::remat {

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

} // namespace c10::remat
