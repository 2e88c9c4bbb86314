#pragma once

#include "../EngineState.h"
#include "WindowChooser.h"

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

  // Clears the cheapest neighboring blocks that serve `request`, by moving or
  // evicting what is there; if there are none, evicts as `evict_bytes` does.
  // Returns the bytes cleared, 0 if none can be.
  Bytes evict_for(const MemoryRequest& request) noexcept;

  // Where nothing is left to evict for `request`: moves what cannot be evicted
  // from among evictable bytes to free blocks among leaves. Returns the bytes
  // moved.
  Bytes move_leaves(const MemoryRequest& request) noexcept;

  // When an iteration begins, and memory has been short: brings what is free
  // together, for long. See Notes [Leaves settle] and [Holes].
  void settle() noexcept;

  // Evicts everything that may be evicted and that no replay will read.
  Bytes evict_all() noexcept;

 private:
  using Segments = std::vector<SegmentView>;

  Bytes evict_reserved(Bytes wanted) noexcept;
  bool settles(const BlockView& block) const noexcept;
  size_t settled_end(const SegmentView& segment) const noexcept;
  // What clearing the block costs; see Note [The price of a window].
  double price(const BlockView& block, Bytes largest_free, bool allow_locked)
      const noexcept;
  // How long clearing it takes, in the end.
  CostNs clearing_ns(const BlockView& block, Bytes largest_free) const noexcept;
  // The part of its price that is left if its bytes are moved; 1: they are not.
  double moving_share(const BlockView& block, VersionId id, Bytes largest_free)
      const noexcept;
  // See Note [What sliding costs].
  void price_slides(
      const Segments& segments,
      double per_ns,
      std::vector<PricedSegment>& priced) const noexcept;
  std::vector<Window> choose(
      const MemoryRequest& request,
      const Segments& segments,
      Bytes largest_free,
      bool allow_locked) const noexcept;
  Bytes clear_windows(
      const MemoryRequest& request,
      const Segments& segments,
      bool allow_locked) noexcept;
  void clear(
      const BlockView& block,
      Bytes largest_free,
      const std::vector<AddressRange>& avoided) noexcept;
  bool slide(const BlockView& block) noexcept;
  bool is_for_neighbors(const MemoryRequest& request, const Segments& segments)
      const noexcept;
  void count_move(const BlockView& block) noexcept;

  static constexpr CostNs kPatience = 50;

  EngineState& state_;
  Ticks settled_at_ = 0;
  CostNs patience_ = kPatience;
};

} // namespace c10::remat
