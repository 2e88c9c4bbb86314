#include "BlockingSection.h"

#include <atomic>

namespace c10::remat {

namespace {

std::atomic<BlockingSection> blocking_section{nullptr};

thread_local int no_interpreter_guards = 0;

void wait_for_lock(void* lock) {
  static_cast<std::unique_lock<std::recursive_mutex>*>(lock)->lock();
}

} // namespace

void set_blocking_section(BlockingSection section) noexcept {
  blocking_section.store(section, std::memory_order_relaxed);
}

void lock_in_blocking_section(std::unique_lock<std::recursive_mutex>& lock) {
  const auto section = blocking_section.load(std::memory_order_relaxed);
  if (lock.try_lock()) {
    return;
  }
  if (section == nullptr) {
    lock.lock();
  } else {
    section(&wait_for_lock, &lock);
  }
}

NoInterpreterGuard::NoInterpreterGuard() noexcept {
  ++no_interpreter_guards;
}

NoInterpreterGuard::~NoInterpreterGuard() {
  --no_interpreter_guards;
}

bool may_take_interpreter_lock() noexcept {
  return no_interpreter_guards == 0;
}

} // namespace c10::remat
