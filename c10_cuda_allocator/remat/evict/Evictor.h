#pragma once

#include "../EngineState.h"

namespace c10::remat {

// Carries evictions out. All functions need the engine's lock.
class Evictor {
 public:
  explicit Evictor(EngineState& state) : state_(state) {}

  // Evicts until at least `wanted` bytes are given back or nothing is left
  // that could be; returns the bytes given back. First by the policy's score,
  // then what the policy would rather keep, then what replays under way will
  // read again, the farthest first.
  Bytes evict_bytes(Bytes wanted) noexcept;

  // Evicts everything that may be evicted and that no replay will read.
  Bytes evict_all() noexcept;

 private:
  Bytes evict_reserved(Bytes wanted) noexcept;

  EngineState& state_;
};

} // namespace c10::remat
