#pragma once

#include "Config.h"
#include "CostTable.h"
#include "Ports.h"
#include "Stats.h"
#include "TraceRecorder.h"
#include "policy/EvictionPolicy.h"
#include "policy/VictimIndex.h"

#include <memory>
#include <mutex>

namespace c10::remat {

// What the parts of one engine share. `mutex` guards everything but the ports
// and is held only to read or change records: never across a replay, and never
// while foreign code runs.
struct EngineState {
  EngineState(
      const Config& config,
      std::unique_ptr<EvictionPolicy> policy,
      StoragePort& storage_port,
      DevicePort& device_port,
      ReplayPort& replay_port)
      : config(config),
        policy(std::move(policy)),
        storage(storage_port),
        device(device_port),
        replayer(replay_port),
        index(std::make_unique<VictimIndex>(graph, *this->policy)) {}

  // The new policy is told of what there is, in the order in which it came.
  // The trace's log is the policy's, and no more.
  void change_policy(std::unique_ptr<EvictionPolicy> new_policy);

  // The version, resident and unpinned, has lost its last owner and reader or
  // its bytes can be made again: gives them back.
  void release_bytes(VersionId id) noexcept;

  // Releases what was collected. The payloads stay in `garbage`, to be
  // destroyed by the caller after it unlocks.
  void settle(Garbage& garbage) noexcept;

  // Gives back an evictable version's bytes.
  void evict(VersionId id) noexcept;

  // What lies in `block`; null: nothing that is known here.
  VersionId version_in(const BlockView& block) const noexcept {
    return block.owner == nullptr ? VersionId{}
                                  : storage.version_of(block.owner);
  }
  // The same, if it can be evicted and no replay will read it.
  VersionId spare_in(const BlockView& block) const noexcept {
    const VersionId id = version_in(block);
    return id && graph.is_spare(id) ? id : VersionId{};
  }

  // The same, if it can be somewhere else.
  VersionId movable_in(const BlockView& block) const noexcept {
    const VersionId id = version_in(block);
    return id && graph.is_movable(id) ? id : VersionId{};
  }

  // `id` has its bytes back.
  void rematerialized(VersionId id, std::unique_ptr<Buffer> buffer);

  // Its owner, its producer or its escape has changed: the bytes of a version
  // that nobody owns are kept only where they could not be made again.
  void release_if_unused(
      VersionId id,
      Garbage& garbage,
      bool was_replayed = false) noexcept;

  // Takes a pin off; `unpin` also settles.
  void let_go(VersionId id, Garbage& garbage) noexcept;
  void unpin(const VersionIds& ids, Garbage& garbage);

  // Can `id` become a leaf now? Not if a replay under way will run its
  // producer, nor if an op is writing over it, which has seen to the readers of
  // leaves only.
  bool can_become_leaf(VersionId id) const {
    const StorageVersion& version = graph[id];
    return version.resident && version.writers == 0 &&
        (!version.producer || graph[version.producer].planned == 0);
  }
  void make_leaf(VersionId id, Garbage& garbage);
  // Where `op` was to be cut, its outputs that have come back become leaves.
  void cut_if_pending(OpId op, Garbage& garbage);

  // Tells the policy how much of the budget is free, and that it is short.
  void report_residual();
  // `needs_neighbors`: bytes that are free are not always of use, so that the
  // room for plans is one part in kUnusable less. Where they leave nothing
  // free, requests for many neighbors clear what a plan keeps, and with it the
  // values that long chains are made again from.
  void report_pressure(bool needs_neighbors = false);
  static constexpr Bytes kUnusable = 100;

  std::mutex mutex;
  Config config;
  OpGraph graph;
  std::unique_ptr<EvictionPolicy> policy;
  StoragePort& storage;
  DevicePort& device;
  ReplayPort& replayer;
  std::unique_ptr<VictimIndex> index;
  CostTable costs;
  Counters counters;
  TraceRecorder trace;
  Bytes resident = 0; // of all versions
  Ticks now = 0;
  uint64_t epoch = 0; // parameter updates so far
};

} // namespace c10::remat
