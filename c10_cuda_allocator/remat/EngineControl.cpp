#include "Engine.h"

#include "Errors.h"
#include "evict/LargestHole.h"
#include "policy/PolicyRegistry.h"

#include <new>

// Engine's members that set and look; Engine.cpp has the verbs.

namespace c10::remat {

void Engine::retire() {
  Garbage garbage;
  Lock lock(state_.mutex);
  const auto replay_lock = take_replay_lock(lock);
  // Stays pinned until the end: what came back must not be evicted for what
  // comes back next.
  std::vector<VersionId> pinned;
  for (;;) {
    std::vector<VersionId> resident;
    VersionId evicted;
    state_.graph.for_each_version([&](VersionId id) {
      const StorageVersion& version = state_.graph[id];
      if (version.resident && version.producer && !version.kept) {
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
      state_.unpin(pinned, garbage);
      throw;
    }
  }
  state_.unpin(pinned, garbage);
  // From now on nobody sees who is told an address.
  state_.graph.for_each_version(
      [&](VersionId id) { state_.graph[id].hidden = false; });
  history_bound_.start_anew();
}

void Engine::note_cost(uint64_t signature, CostNs cost) {
  const Lock lock(state_.mutex);
  state_.costs.update(signature, cost);
}

void Engine::set_budget(Bytes budget) {
  const Lock lock(state_.mutex);
  state_.config.budget = budget;
  state_.report_residual();
}

void Engine::configure(const Config& config) {
  auto policy = make_policy(config.policy);
  const Lock lock(state_.mutex);
  if (config.policy != state_.config.policy) {
    state_.change_policy(std::move(policy));
  }
  state_.config = config;
  state_.report_residual();
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

std::shared_ptr<PlanExchange> Engine::plan_exchange() const {
  const Lock lock(state_.mutex);
  return state_.policy->plan_exchange();
}

CostNs Engine::recompute_cost() const {
  const Lock lock(state_.mutex);
  return state_.counters.recompute_ns;
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
  state_.counters.count_not_replayable(reason);
}

Census Engine::census() const {
  const Lock lock(state_.mutex);
  Census census;
  census.storages = state_.graph.version_count();
  census.op_records = state_.graph.op_count();
  census.largest_hole = largest_hole(state_);
  census.plans = state_.policy->plan_census();
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
  Bytes resident = 0;
  state_.graph.for_each_version([&](VersionId id) {
    resident += state_.graph[id].resident ? state_.graph[id].size : 0;
  });
  REMAT_ASSERT(resident == state_.resident);
  state_.index->check_invariants();
}

void Engine::wait_for_replays() {
  (void)replay_mutex_.lock();
}

void Engine::lock_replays_for_fork() {
  replay_mutex_.lock_for_fork();
}

void Engine::lock_for_fork() {
  state_.mutex.lock();
}

void Engine::unlock_in_parent() {
  state_.mutex.unlock();
  replay_mutex_.unlock_in_parent();
}

void Engine::reset_in_child(int own_ops) {
  replay_mutex_.reset_in_child();
  new (&state_.mutex) std::mutex;
  // Replays under way are the forking thread's, which had their lock.
  ops_in_flight_ = own_ops;
  state_.config.budget = Config::kUnlimited;
  state_.config.chaos = false;
  state_.trace.abandon();
}

} // namespace c10::remat
