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

  // Frees the cheapest neighboring blocks that serve `request`; if there are
  // none, evicts as `evict_bytes` does. Returns the bytes given back, 0 if
  // nothing can be.
  Bytes evict_for(const MemoryRequest& request) noexcept;

  // Evicts everything that may be evicted and that no replay will read.
  Bytes evict_all() noexcept;

 private:
  Bytes evict_reserved(Bytes wanted) noexcept;
  Bytes evict_windows(
      const MemoryRequest& request,
      const std::vector<SegmentView>& segments,
      bool allow_locked) noexcept;

  EngineState& state_;
};

} // namespace c10::remat
