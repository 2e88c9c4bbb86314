#pragma once

#include "Export.h"

#include <cstddef>
#include <cstdint>

namespace c10::remat {

// Live bytes of c10's default CPU allocator, counted from the start of the
// process whether remat is on or off, so that a plain run and a run within a
// budget are measured alike. A block counts with its usable size, which is
// what the process gives up for it.
struct CpuMemoryUsage {
  int64_t live;
  int64_t peak;
};

REMAT_API CpuMemoryUsage cpu_memory_usage() noexcept;
// The peak starts again from the bytes live now.
REMAT_API void reset_cpu_memory_peak() noexcept;

// Called before an allocation of `nbytes` that would take live bytes
// `shortage` above the limit. Frees memory, or throws; the allocation goes
// ahead where it returns.
using CpuPressureCallback = void (*)(size_t nbytes, size_t shortage);

// At most `limit_bytes` live; a null callback turns the check off.
REMAT_API void set_cpu_memory_limit(
    int64_t limit_bytes,
    CpuPressureCallback callback) noexcept;

// In a forked child, once: no limit, and what the parent's other threads were
// about to allocate will not be.
REMAT_API void reset_cpu_memory_limit_in_child() noexcept;

// Bytes by which what is live and what is about to be is above the limit;
// zero or less where it fits.
REMAT_API int64_t cpu_memory_shortage() noexcept;

// What the patched allocator calls. While no limit is set, the first costs one
// predictable branch.
REMAT_API void before_cpu_allocation(size_t nbytes);
REMAT_API void after_cpu_allocation(void* block) noexcept;
REMAT_API void before_cpu_free(void* block) noexcept;

} // namespace c10::remat
