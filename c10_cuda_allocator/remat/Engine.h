#pragma once

#include "DeviceMemory.h"
#include "EngineState.h"
#include "Export.h"
#include "HistoryBound.h"
#include "LeafCutter.h"
#include "ReplayMutex.h"
#include "evict/Evictor.h"
#include "replay/Rematerializer.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace c10::remat {

// A write that an op is about to do.
struct Write {
  VersionId version; // what the storage holds; set by begin_op
  // Every byte is written and none is read, so the old bytes do not matter.
  bool overwrites_all = false;
  // Has no part in the op's other outputs, and is not repeated by a replay.
  bool side_effect = false;
  bool is_parameter = false; // a leaf of autograd: the optimizer's doing
};

using Writes = InlineVector<Write, 2>;
using Holders = InlineVector<void*, 6>;

// What an op did, told to the engine when it has run.
struct OpCapture {
  struct Fresh {
    Bytes size;
    void* holder;
  };

  VersionIds inputs; // read; each once, all pinned by begin_op
  Writes writes; // as told to begin_op
  InlineVector<Fresh, 2> fresh; // storages that the op created
  // Measured, this time; 0: not, which is enough where `CostTable::kSamples`
  // ops of the same signature were.
  CostNs cost = 0;
  CostNs estimate = 0; // counts until the signature is measured; 0: none
  uint64_t signature = 0; // ops that cost about the same have the same
  // Null: not replayable, and the outputs are leaves.
  std::shared_ptr<OpPayload> payload;
  const char* name = "";
  const char* not_replayable = nullptr; // why the payload is null, if counted
};

// Memory as an out-of-memory error reports it.
struct MemoryBreakdown {
  Bytes budget;
  Bytes usage;
  Census census;
};

// Keeps one device within its budget. Thread-safe.
//
// Lock order: replay lock, engine lock, allocator lock. The replay lock is
// held across whole replays and by whoever cuts history that a replay may be
// using; the engine lock only to read or change records.
class REMAT_API Engine {
 public:
  // The ports must outlive the engine. Throws UsageError for an unknown policy.
  Engine(
      const Config& config,
      StoragePort& storage,
      DevicePort& device,
      ReplayPort& replayer);
  // The same with a policy of its own; `config.policy` is not looked at.
  Engine(
      const Config& config,
      std::unique_ptr<EvictionPolicy> policy,
      StoragePort& storage,
      DevicePort& device,
      ReplayPort& replayer);

  // --- the five verbs ---

  // Makes what the op reads and writes resident and pins it. Before a leaf is
  // written, a copy is kept for its dependents, or they become leaves, those
  // evicted after coming back; see Note [Leaves that are written or die].
  // Throws what a replay throws, and
  // then nothing is pinned.
  // `holders` are those of the inputs, then of the writes; what they hold is
  // looked up under the lock and left in `inputs` and `writes`. What the policy
  // has planned for the bytes of the op is left in `placement`, if not null.
  void begin_op(
      const Holders& holders,
      VersionIds& inputs,
      Writes& writes,
      PlacementPlan* placement = nullptr);

  // Records the op and undoes begin_op's pins. Returns the ids of the fresh
  // outputs, then of the written versions.
  VersionIds end_op(OpCapture&& capture);

  // Undoes begin_op after an op that threw. What it was to write may have been
  // written in part: new versions, returned, that are leaves.
  VersionIds abort_op(const VersionIds& inputs, const Writes& writes);

  // Makes `id` resident and pins it, outside any op. Undone by `unpin`.
  void ensure_resident(VersionId id);
  void unpin(VersionId id);
  // The same for what `holder` holds now; returned, as it may be written over
  // before it is unpinned.
  VersionId ensure_held_resident(void* holder);

  // The storage that owned `id` is gone, or holds other bytes now.
  void storage_died(VersionId id);

  // The allocator is `wanted` bytes short. Evicts; returns the bytes given
  // back, which may be fewer. Never replays, never throws.
  Bytes relieve_pressure(Bytes wanted) noexcept;

  // The same for one allocation; returns the bytes given back. 0: nothing can
  // be.
  Bytes relieve_request(const MemoryRequest& request) noexcept;

  // --- storages met outside ops ---

  // A storage that no recorded op produced. `is_gradient`: a backward pass has
  // just made it, and no other code has seen it.
  VersionId add_leaf(Bytes size, void* holder, bool is_gradient = false);

  // A leaf of autograd holds `id`. If that was made from nothing (initialized),
  // it becomes a leaf: parameters are read all the time and never worth
  // evicting. Returns false if it is not one for now.
  bool declare_parameter(VersionId id);

  // Someone may write to the storage of `holder` from outside, now, as an op
  // that begin_op is told of would. Returns what it holds from then on, a
  // leaf; with `for_good` it is never evicted again.
  VersionId escape(void* holder, bool for_good);

  // The program keeps it resident; counted.
  void pin_by_user(VersionId id);
  void unpin_by_user(VersionId id);

  // Makes everything resident and forgets all history: every version is a
  // leaf afterwards. Throws what a replay throws.
  void retire();

  // --- control ---

  // Ops between begin_op and end_op, on all threads.
  int ops_in_flight() const {
    return ops_in_flight_.load(std::memory_order_relaxed);
  }

  void set_budget(Bytes budget);
  // Throws UsageError for an unknown policy, and then nothing has changed.
  void configure(const Config& config);
  Config config() const;
  // The policy's; null if it follows no plans. See BackgroundPlanner.
  std::shared_ptr<PlanExchange> plan_exchange() const;
  bool evict(VersionId id); // if it may be; for tests
  uint64_t evict_all();
  bool is_resident(VersionId id) const;

  Counters counters() const;
  CostNs recompute_cost() const; // of these, without a copy of all
  void reset_counters();
  // A measurement that was not there yet when the op was told of.
  void note_cost(uint64_t signature, CostNs cost);
  void count_overhead(int64_t ns);
  void count_fault();
  void count_out_of_memory();
  void count_not_replayable(const char* reason);
  Census census() const;
  MemoryBreakdown breakdown() const;

  // Writes what is in the graph now, and every event from now on, to `path`.
  // Throws UsageError if it cannot be written or a trace is being written.
  void start_trace(const std::string& path);
  // No effect without a trace. Throws UsageError if it is incomplete.
  void stop_trace();

  void check_invariants() const;

  // Returns once replays now under way are done.
  void wait_for_replays();

  // For fork: nothing of the engine is half-done while both locks are held.
  // That of replays, of all engines, first: one may be waiting for a replay of
  // another, and waits in a blocking section.
  void lock_replays_for_fork();
  void lock_for_fork();
  void unlock_in_parent();
  // The child has no budget: it has the parent's memory, which it shares. Of
  // the ops under way, `own_ops` are the forking thread's and go on.
  void reset_in_child(int own_ops);

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Takes the replay lock, which comes first in lock order.
  ReplayMutex::Lock take_replay_lock(Lock& lock);
  // Makes `ids` resident and pins them.
  void pin_resident(const VersionIds& ids, Lock& lock, Garbage& garbage);
  // The same for what `holders` hold when it is done.
  VersionIds pin_held(const Holders& holders, Lock& lock, Garbage& garbage);
  void note_access(VersionId id);
  // An op has been recorded.
  void note_iteration();
  // What `old`'s storage holds after a write; takes a pin off `old`.
  VersionId replace_written(VersionId old);
  void finish_replaced(VersionId old, Garbage& garbage);
  bool take_snapshot(VersionId id, Lock& lock);
  bool is_made_from_gradients(const OpCapture& capture) const;
  bool is_replayable(const OpCapture& capture) const;
  VersionIds add_results(OpCapture& capture, bool replayable, OpRecord& record);
  OpId record_op(
      OpCapture& capture,
      bool replayable,
      CostNs cost,
      OpRecord&& record);

  mutable EngineState state_;
  Evictor evictor_;
  Rematerializer rematerializer_;
  LeafCutter cutter_;
  HistoryBound history_bound_;
  ReplayMutex replay_mutex_;
  uint32_t ops_since_report_ = 0;
  // To tell when an iteration begins.
  uint64_t epoch_recorded_ = 0; // of the last recorded op
  uint32_t recorded_in_epoch_ = 0;
  bool had_requests_ = false; // in this iteration, that no block served
  // Of leaves about to be written, until they are.
  std::unordered_map<VersionId, std::unique_ptr<Buffer>> snapshots_;
  std::atomic<int> ops_in_flight_{0};
};

} // namespace c10::remat
