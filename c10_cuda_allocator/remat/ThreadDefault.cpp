#include "ThreadDefault.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace c10::remat {

namespace {

std::atomic<uint64_t> default_included{0};

// The sets of the threads that there are. Never destroyed: threads may outlive
// static destruction.
struct Threads {
  std::mutex mutex;
  std::vector<uint64_t*> sets;
};

Threads& threads() {
  static auto* all = new Threads;
  return *all;
}

struct Registration {
  uint64_t* set;

  explicit Registration(uint64_t* included) : set(included) {
    const std::lock_guard<std::mutex> lock(threads().mutex);
    threads().sets.push_back(set);
  }
  ~Registration() {
    const std::lock_guard<std::mutex> lock(threads().mutex);
    auto& sets = threads().sets;
    sets.erase(std::remove(sets.begin(), sets.end(), set), sets.end());
  }
};

// Only the forking thread lives on in the child.
thread_local uint64_t* own_set = nullptr;

void before_fork() {
  threads().mutex.lock();
}

void after_fork_in_parent() {
  threads().mutex.unlock();
}

void after_fork_in_child() {
  threads().sets.clear();
  if (own_set != nullptr) {
    threads().sets.push_back(own_set);
  }
  threads().mutex.unlock();
}

} // namespace

uint64_t thread_default_included() noexcept {
  return default_included.load(std::memory_order_relaxed);
}

void set_thread_default_included(uint64_t raw_keys) noexcept {
  default_included.store(raw_keys, std::memory_order_relaxed);
}

uint64_t start_thread(uint64_t* included) {
  static const int handles_fork =
      pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
  (void)handles_fork;
  own_set = included;
  thread_local const Registration registration(included);
  return thread_default_included();
}

void include_in_all_threads(uint64_t raw_keys) {
  const std::lock_guard<std::mutex> lock(threads().mutex);
  for (uint64_t* set : threads().sets) {
    __atomic_fetch_or(set, raw_keys, __ATOMIC_RELAXED);
  }
}

} // namespace c10::remat
