#include "ReplayTimer.h"

#include "../capture/MemoryPressure.h"

namespace at::remat {

namespace {

thread_local int64_t replay_ns = 0;
thread_local int depth = 0;

} // namespace

int64_t replay_ns_of_thread() {
  return replay_ns;
}

bool is_replaying() {
  return depth > 0;
}

ReplayTimer::ReplayTimer()
    : start_(std::chrono::steady_clock::now()),
      relief_before_(relief_ns_of_thread()) {
  ++depth;
}

ReplayTimer::~ReplayTimer() {
  if (--depth == 0) {
    const int64_t elapsed =
        std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now() - start_)
            .count();
    replay_ns += elapsed - (relief_ns_of_thread() - relief_before_);
  }
}

} // namespace at::remat
