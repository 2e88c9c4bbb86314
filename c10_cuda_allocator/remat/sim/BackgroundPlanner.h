#pragma once

#include "../policy/PlanExchange.h"

#include <memory>
#include <thread>

namespace c10::remat {

// Makes the plans that a policy asks for, on a thread of its own that runs at
// the lowest priority and takes at most a share of one core. What it finds does
// not depend on the clock, only when.
//
// Not thread-safe, but for what is said.
class REMAT_API BackgroundPlanner {
 public:
  BackgroundPlanner() = default;
  ~BackgroundPlanner() {
    stop();
  }
  BackgroundPlanner(const BackgroundPlanner&) = delete;
  BackgroundPlanner& operator=(const BackgroundPlanner&) = delete;

  // Serves `exchange`, and no other, from now on. No effect if it does so
  // already with this share; none is served if that is 0, or if there is no
  // exchange or no thread to be had.
  void start(std::shared_ptr<PlanExchange> exchange, double share);
  // Ends a search under way, within a few steps of its simulation, and the
  // thread.
  void stop() noexcept;

  bool is_running() const {
    return thread_.joinable();
  }

  // For fork, as the engine's: the child has no thread.
  void lock_for_fork();
  void unlock_in_parent();
  void reset_in_child();

 private:
  std::shared_ptr<PlanExchange> exchange_; // null: not running
  double share_ = 0;
  std::thread thread_;
};

} // namespace c10::remat
