#include "Engine.h"

#include "Errors.h"

// Engine's members for storages that are met outside ops, or make way.

namespace c10::remat {

void Engine::ensure_resident(VersionId id) {
  Garbage garbage;
  Lock lock(state_.mutex);
  pin_resident({id}, lock, garbage);
  note_access(id);
}

VersionId Engine::ensure_held_resident(void* holder) {
  Garbage garbage;
  Lock lock(state_.mutex);
  const VersionId id = pin_held({holder}, lock, garbage)[0];
  note_access(id);
  return id;
}

void Engine::note_access(VersionId id) {
  state_.graph[id].last_access = state_.now;
  state_.policy->on_read(state_.graph, id);
  if (state_.trace.is_on()) {
    state_.trace.access(state_.graph, id);
  }
}

void Engine::unpin(VersionId id) {
  Garbage garbage;
  Lock lock(state_.mutex);
  state_.unpin({id}, garbage);
}

bool Engine::declare_parameter(VersionId id) {
  Garbage garbage;
  const Lock lock(state_.mutex);
  const StorageVersion& version = state_.graph[id];
  if (!version.producer) {
    return true;
  }
  if (!state_.can_become_leaf(id) ||
      !state_.graph[version.producer].inputs.empty()) {
    return false;
  }
  state_.make_leaf(id, garbage);
  state_.settle(garbage);
  return true;
}

VersionId Engine::add_leaf(Bytes size, void* holder, bool is_gradient) {
  const Lock lock(state_.mutex);
  const VersionId id = state_.graph.add_version(size, holder, state_.now);
  state_.graph.own(id);
  state_.graph[id].resident = true;
  state_.graph[id].hidden = is_gradient;
  state_.graph[id].is_gradient = is_gradient;
  state_.resident += size;
  state_.storage.set_version(holder, id);
  if (state_.trace.is_on()) {
    state_.trace.version(state_.graph, id);
  }
  return id;
}

VersionId Engine::escape(void* holder, bool for_good) {
  Garbage garbage;
  Lock lock(state_.mutex);
  const auto replay_lock = take_replay_lock(lock);
  const VersionId id = pin_held({holder}, lock, garbage)[0];
  if (state_.trace.is_on() && state_.graph.is_leaf(id)) {
    state_.trace.leaf_write(state_.graph, id, /*is_parameter=*/false);
  }
  VersionId escaped = id;
  try {
    if (!state_.graph.is_leaf(id) || take_snapshot(id, lock)) {
      // Its readers keep the version that they have read.
      if (state_.trace.is_on()) {
        state_.trace.death(state_.graph, id);
      }
      escaped = replace_written(id);
      finish_replaced(id, garbage);
    } else {
      cutter_.cut(id, lock, garbage);
      state_.unpin({id}, garbage);
    }
  } catch (...) {
    state_.unpin({id}, garbage);
    throw;
  }
  if (state_.trace.is_on() && escaped != id) {
    state_.trace.version(state_.graph, escaped);
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
