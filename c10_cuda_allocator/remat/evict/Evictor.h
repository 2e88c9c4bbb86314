#pragma once

#include "../EngineState.h"

namespace c10::remat {

// Carries evictions out. All functions need the engine's lock.
class Evictor {
 public:
  explicit Evictor(EngineState& state) : state_(state) {}

  // Evicts, lowest score first, until at least `wanted` bytes are given back
  // or nothing evictable is left; returns the bytes given back. What a policy
  // merely prefers to keep, and what a replay will read soon, goes last.
  Bytes evict_bytes(Bytes wanted) noexcept;

  // Evicts everything that may be evicted and that no replay will read.
  Bytes evict_all() noexcept;

 private:
  EngineState& state_;
};

} // namespace c10::remat
