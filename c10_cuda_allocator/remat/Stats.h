#pragma once

#include "Ids.h"

#include <functional>
#include <map>
#include <string>

namespace c10::remat {

// Counted since the last reset.
struct Counters {
  uint64_t ops_captured = 0;
  uint64_t evictions = 0;
  // Of those, for a request that the free bytes of the segments that serve it
  // would have served, had they been in one place.
  uint64_t fragmentation_evictions = 0;
  // Sums over the requests that memory was evicted for: what was reserved, and
  // what of that was free and not taken by the request.
  Bytes reserved_at_requests = 0;
  Bytes unusable_at_requests = 0;
  // Storages that were copied elsewhere in device memory so that neighboring
  // bytes became free, and their bytes.
  uint64_t moves = 0;
  Bytes moved_bytes = 0;
  uint64_t replays = 0; // op records run again
  CostNs recompute_ns = 0; // their recompute cost
  int64_t overhead_ns = 0; // time in remat outside ops and replays
  uint64_t deepest_replay = 0; // op records in the longest replay plan
  uint64_t faults = 0; // accesses outside any op
  uint64_t out_of_memory = 0;
  // Reason -> ops. Looked up without making a string.
  std::map<std::string, uint64_t, std::less<>> not_replayable;

  void count_not_replayable(const char* reason) {
    const auto found = not_replayable.find(reason);
    ++(found != not_replayable.end() ? found->second : not_replayable[reason]);
  }
};

// What a policy that follows plans knows and does.
struct PlanCensus {
  // The kind of iteration that this one is taken for, whose plan decides;
  // 0: none does. Kinds are numbered from 1 on as they are met.
  uint64_t kind = 0;
  uint64_t kinds = 0; // that are known
  bool is_searching = false; // a plan was asked for and is not there yet
  // So far: candidates that were simulated, and plans that were taken over.
  uint64_t tried = 0;
  uint64_t adopted = 0;
  Bytes memory = 0; // of what is known, plans, and the log; estimated
};

// What there is now.
struct Census {
  uint64_t storages = 0; // versions in the graph
  uint64_t op_records = 0;
  Bytes resident = 0; // managed and in use
  Bytes evicted = 0;
  Bytes evictable = 0;
  Bytes pinned_by_ops = 0;
  Bytes pinned_by_user = 0;
  Bytes leaf = 0;
  Bytes escaped = 0;
  Bytes held = 0; // kept for replay only
  // Most neighboring bytes that are free or evictable; 0: there are no
  // neighbors.
  Bytes largest_hole = 0;
  PlanCensus plans;
};

} // namespace c10::remat
