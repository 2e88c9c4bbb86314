#include "ReplayMutex.h"

#include "BlockingSection.h"

#include <atomic>
#include <new>

namespace c10::remat {

namespace {

std::recursive_mutex& mutex_of_all() {
  // Never destroyed: threads may replay while the process exits.
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

std::atomic<bool> excludes_all{false};

} // namespace

ReplayMutex::Lock ReplayMutex::lock() {
  for (;;) {
    Lock lock;
    const bool all = excludes_all.load(std::memory_order_acquire);
    if (all) {
      lock.all_ = std::unique_lock(mutex_of_all(), std::defer_lock);
      lock_in_blocking_section(lock.all_);
    }
    lock.own_ = std::unique_lock(own_, std::defer_lock);
    lock_in_blocking_section(lock.own_);
    if (all == excludes_all.load(std::memory_order_acquire)) {
      return lock;
    }
  }
}

void ReplayMutex::exclude_all() {
  excludes_all.store(true);
}

void ReplayMutex::lock_for_fork() {
  for (std::recursive_mutex* mutex : {&mutex_of_all(), &own_}) {
    std::unique_lock lock(*mutex, std::defer_lock);
    lock_in_blocking_section(lock);
    lock.release();
  }
}

void ReplayMutex::unlock_in_parent() {
  own_.unlock();
  mutex_of_all().unlock();
}

void ReplayMutex::reset_in_child() {
  new (&mutex_of_all()) std::recursive_mutex;
  new (&own_) std::recursive_mutex;
}

} // namespace c10::remat
