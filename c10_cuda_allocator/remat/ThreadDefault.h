#pragma once

#include "Export.h"

#include <cstdint>

namespace c10::remat {

// Note [Keys of all threads]
// Capture needs our dispatch key in every thread's included set. Threads
// started while remat is on get it from the start: `start_thread` is the
// initializer of c10's thread-local set. Those started before are known by it
// too, and `include_in_all_threads` sets the bit in each. Their own guards
// read, change and write the set without a lock, so one that is at it at that
// moment may write the old bit back: such a thread is missed until it is
// enabled again, but no other bit is ever lost, since ours is set atomically.

// Dispatch keys, as a raw key set, that threads started from now on include.
// Zero while remat is off: the thread-local then starts as upstream's does. See
// upstream's Note [TLS Initialization]: the stored state is relative to the
// default set, which holds none of our keys.
//
// Guards that exclude whole ranges of keys leave these out: while Python
// handles an op (a dispatch mode, a subclass) upstream excludes every key above
// Python, and the ops that the handler calls would read evicted storages
// unseen.
REMAT_API uint64_t thread_default_included() noexcept;
REMAT_API void set_thread_default_included(uint64_t raw_keys) noexcept;

// Called once by each thread, with the address of its included set; returns
// what that starts as.
REMAT_API uint64_t start_thread(uint64_t* included);

// Adds `raw_keys` to the sets of all threads there are.
REMAT_API void include_in_all_threads(uint64_t raw_keys);

} // namespace c10::remat
