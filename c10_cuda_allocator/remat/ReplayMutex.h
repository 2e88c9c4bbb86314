#pragma once

#include "Export.h"

#include <mutex>

namespace c10::remat {

// What one engine's replays exclude each other with. Recursive: an op being
// replayed may itself reach evicted storages.
//
// Note [Replays that reach other devices]
// An op whose code is not ATen's may read storages that are not among its
// operands, those of another device, too; if they are evicted, its replay wants
// that engine's replay lock besides its own. Two threads that do so on two
// devices would wait for each other forever. So, from the first such op on, one
// lock of the process comes before those of the engines, and devices no longer
// replay side by side.
class REMAT_API ReplayMutex {
 public:
  class Lock {
    friend class ReplayMutex;
    std::unique_lock<std::recursive_mutex> all_, own_;
  };

  // Waits in a blocking section.
  Lock lock();

  // From now on replays of all engines exclude each other. The caller then
  // locks each mutex once, so that nobody is left who holds one of them alone,
  // before it lets such an op be recorded.
  static void exclude_all();

  // Both locks, waited for in a blocking section, and in a forked child both
  // anew: a recursive mutex belongs to a thread id, which fork changes.
  void lock_for_fork();
  void unlock_in_parent();
  void reset_in_child();

 private:
  std::recursive_mutex own_;
};

} // namespace c10::remat
