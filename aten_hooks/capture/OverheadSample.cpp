#include "OverheadSample.h"

#include "../replay/ReplayTimer.h"
#include "MemoryPressure.h"

#include <algorithm>

namespace at::remat {

namespace {

int64_t excluded_ns() {
  return relief_ns_of_thread() + replay_ns_of_thread();
}

} // namespace

void OverheadSample::resume() {
  if (engine_ != nullptr) {
    is_running_ = true;
    excluded_before_ = excluded_ns();
    start_ = std::chrono::steady_clock::now();
  }
}

void OverheadSample::pause() {
  if (is_running_) {
    const int64_t elapsed =
        std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now() - start_)
            .count();
    ns_ += std::max<int64_t>(elapsed - (excluded_ns() - excluded_before_), 0);
    is_running_ = false;
  }
}

void OverheadSample::report() {
  pause();
  engine_->count_overhead(kEvery * ns_);
}

} // namespace at::remat
