#pragma once

#include <c10/remat/Engine.h>

#include <chrono>
#include <cstdint>

namespace at::remat {

// How long capture takes, around one op in kEvery of each thread: from its
// making to `pause`, and from `resume` to its end, less what replays took and
// relief, which counts its own time. The engine is told kEvery times as much.
// For the other ops it does nothing.
class OverheadSample {
 public:
  // A prime, since a loop of a power of two ops would show one of them only.
  static constexpr uint32_t kEvery = 17;
  // Which of them: early, so that short runs have a figure, but not the
  // first, which finds everything cold.
  static constexpr uint32_t kTurn = 4;

  // Null: nobody is told.
  explicit OverheadSample(c10::remat::Engine* engine) {
    thread_local uint32_t ops = 0;
    if (engine != nullptr && ops++ % kEvery == kTurn) {
      engine_ = engine;
      resume();
    }
  }
  ~OverheadSample() {
    if (engine_ != nullptr) {
      report();
    }
  }
  OverheadSample(const OverheadSample&) = delete;
  OverheadSample& operator=(const OverheadSample&) = delete;

  void pause();
  void resume();

 private:
  void report();

  c10::remat::Engine* engine_ = nullptr; // null: not this op's turn
  bool is_running_ = false;
  std::chrono::steady_clock::time_point start_;
  int64_t excluded_before_ = 0;
  int64_t ns_ = 0;
};

} // namespace at::remat
