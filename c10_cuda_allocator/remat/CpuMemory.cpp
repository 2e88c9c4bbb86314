#include "CpuMemory.h"

#include <malloc.h>

#include <atomic>
#include <limits>

namespace c10::remat {

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> limit{kNoLimit};
std::atomic<CpuPressureCallback> pressure_callback{nullptr};

// Bytes granted to allocations that have not happened yet, so that threads
// allocating at once cannot pass the limit together.
std::atomic<int64_t> reserved{0};
thread_local int64_t reserved_here = 0;

// A block's usable size is above the bytes asked for by alignment and, where
// the C library maps it by itself, by less than a page and its header.
int64_t upper_bound_of_usable_size(size_t nbytes) {
  constexpr size_t kSmallestMapped = 64 * 1024;
  return static_cast<int64_t>(
      nbytes + (nbytes < kSmallestMapped ? 128 : 2 * 4096));
}

// Also undoes the reservation of an allocation that failed: nothing else
// tells us of those.
void drop_reservation() noexcept {
  if (reserved_here != 0) {
    reserved.fetch_sub(reserved_here, std::memory_order_relaxed);
    reserved_here = 0;
  }
}

} // namespace

CpuMemoryUsage cpu_memory_usage() noexcept {
  return {
      live.load(std::memory_order_relaxed),
      peak.load(std::memory_order_relaxed)};
}

void reset_cpu_memory_peak() noexcept {
  peak.store(live.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void set_cpu_memory_limit(
    int64_t limit_bytes,
    CpuPressureCallback callback) noexcept {
  pressure_callback.store(callback, std::memory_order_relaxed);
  limit.store(
      callback == nullptr ? kNoLimit : limit_bytes, std::memory_order_release);
}

void reset_cpu_memory_limit_in_child() noexcept {
  set_cpu_memory_limit(0, nullptr);
  reserved.store(reserved_here, std::memory_order_relaxed);
}

int64_t cpu_memory_shortage() noexcept {
  const int64_t limit_bytes = limit.load(std::memory_order_relaxed);
  return limit_bytes == kNoLimit ? 0
                                 : live.load(std::memory_order_relaxed) +
          reserved.load(std::memory_order_relaxed) - limit_bytes;
}

void before_cpu_allocation(size_t nbytes) {
  const int64_t limit_bytes = limit.load(std::memory_order_acquire);
  if (__builtin_expect(limit_bytes == kNoLimit, 1)) {
    return;
  }
  drop_reservation();
  const int64_t wanted = upper_bound_of_usable_size(nbytes);
  reserved_here = wanted;
  const int64_t usage = reserved.fetch_add(wanted, std::memory_order_relaxed) +
      wanted + live.load(std::memory_order_relaxed);
  const auto callback = pressure_callback.load(std::memory_order_relaxed);
  if (usage > limit_bytes && callback != nullptr) {
    try {
      callback(nbytes, static_cast<size_t>(usage - limit_bytes));
    } catch (...) {
      drop_reservation();
      throw;
    }
  }
}

void after_cpu_allocation(void* block) noexcept {
  const auto bytes = static_cast<int64_t>(malloc_usable_size(block));
  const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (now > seen &&
         !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
  drop_reservation();
}

void before_cpu_free(void* block) noexcept {
  live.fetch_sub(
      static_cast<int64_t>(malloc_usable_size(block)),
      std::memory_order_relaxed);
}

} // namespace c10::remat
