#include "ThreadDefault.h"

#include <atomic>

namespace c10::remat {

namespace {

std::atomic<uint64_t> default_included{0};

} // namespace

uint64_t thread_default_included() noexcept {
  return default_included.load(std::memory_order_relaxed);
}

void set_thread_default_included(uint64_t raw_keys) noexcept {
  default_included.store(raw_keys, std::memory_order_relaxed);
}

} // namespace c10::remat
