#pragma once

#include "../Ids.h"
#include "InlineVector.h"

namespace c10::remat {

// A node of the graph: the bytes of one storage between two writes.
//
//   owned    a storage of the program holds this version
//   resident the bytes are present
//
// owned and resident: in use. Owned, not resident: evicted. Not owned, not
// resident: an intermediate that only replay needs. Not owned, resident: bytes
// kept because something may be replayed from them, which are evicted like
// others (`kept`); bytes held for replay, which is how a leaf outlives its
// storage, and what a replay is working on.
struct StorageVersion {
  Bytes size = 0;
  OpId producer; // none: a leaf, which nothing can rematerialize
  Ticks last_access = 0;
  uint64_t created = 0; // sequence number, breaks ties
  uint64_t epoch = 0; // how often parameters had been updated by then
  InlineVector<OpId, 2> readers; // op records that read it, one entry each
  void* holder = nullptr; // the StoragePort's; opaque here
  uint32_t pins = 0; // by running ops and replays
  uint32_t user_pins = 0; // by the program
  uint32_t writers = 0; // running ops that will write over it
  uint32_t reservations = 0; // ops of replays under way that will use it
  // When the first of those reads it; see Note [Next uses].
  uint64_t next_use = UINT64_MAX;
  bool alive = false; // the slot is in use
  bool owned = false;
  bool resident = false;
  // Not owned, resident, not a leaf, and evictable.
  bool kept = false;
  bool escaped = false; // its address may be kept: never evicted
  // Managed since it was made: nobody knows its address, unless it escaped.
  bool hidden = false;
  bool is_gradient = false; // made by a backward pass
};

// Its bytes serve the program, or replays to come.
inline bool is_in_use(const StorageVersion& version) {
  return version.resident && (version.owned || version.kept);
}

// Nothing keeps its bytes where they are: nobody pins them, and no address of
// them is out.
inline bool is_unattached(const StorageVersion& version) {
  return version.pins == 0 && version.user_pins == 0 && !version.escaped;
}

} // namespace c10::remat
