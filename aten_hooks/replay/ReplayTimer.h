#pragma once

#include <chrono>
#include <cstdint>

namespace at::remat {

// Time that this thread has spent replaying ops, without relieving pressure
// meanwhile.
int64_t replay_ns_of_thread();

// Is this thread running an op again?
bool is_replaying();

// Counts its lifetime; one inside another counts once.
class ReplayTimer {
 public:
  ReplayTimer();
  ~ReplayTimer();
  ReplayTimer(const ReplayTimer&) = delete;
  ReplayTimer& operator=(const ReplayTimer&) = delete;

 private:
  std::chrono::steady_clock::time_point start_;
  int64_t relief_before_;
};

} // namespace at::remat
