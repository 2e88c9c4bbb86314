#pragma once

#include "EngineState.h"

namespace c10::remat {

// Keeps the records that training leaves behind from growing without bound;
// see Note [Bounded history].
class HistoryBound {
 public:
  explicit HistoryBound(EngineState& state) : state_(state) {}

  // Is it time for `enforce`?
  bool is_due() const {
    return state_.graph.op_count() >= next_check_;
  }
  void enforce(Garbage& garbage);
  // All history is gone: what it was does not tell how much there will be.
  void start_anew() {
    next_check_ = kFirstCheck;
  }

 private:
  // A history shorter than this is not worth looking at.
  static constexpr size_t kFirstCheck = 1024;

  EngineState& state_;
  size_t next_check_ = kFirstCheck;
};

} // namespace c10::remat
