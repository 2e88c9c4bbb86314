#pragma once

#include "Export.h"

#include <cstdint>

namespace c10::remat {

// Dispatch keys, as a raw key set, that threads started from now on include
// from their first op. Zero while remat is off: then the thread-local starts
// as upstream's does. See upstream's Note [TLS Initialization]: the stored
// state is relative to the default set, which holds none of our keys.
//
// Guards that exclude whole ranges of keys leave these out: while Python handles
// an op (a dispatch mode, a subclass) upstream excludes every key above Python,
// and the ops that the handler calls would read evicted storages unseen.
REMAT_API uint64_t thread_default_included() noexcept;
REMAT_API void set_thread_default_included(uint64_t raw_keys) noexcept;

} // namespace c10::remat
