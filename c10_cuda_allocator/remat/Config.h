#pragma once

#include "Ids.h"

#include <limits>
#include <string>

namespace c10::remat {

// Every setting, checked by the engine when it is given one.
struct Config {
  static constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();

  // Highest usage of the device.
  Bytes budget = kUnlimited;
  // Eviction, once it starts, goes on until usage is this share of the budget
  // below it.
  double headroom = 0.0;
  std::string policy;
  // Of one core, for making plans while the program runs; 0: none are made. For
  // whoever owns the engine: see BackgroundPlanner.
  double planner_share = 0.1;
  // For comparisons: false treats a device whose memory lies in segments as an
  // allocator that knows no owners is treated. Evictable bytes are not placed
  // apart, and victims are chosen one at a time until the request fits.
  bool windows = true;
  // Evict everything evictable after each op, whatever the budget.
  bool chaos = false;
  // Records that keep a version alive through more than this many
  // intermediates are cut; see Note [Bounded history].
  uint32_t longest_history = 256;
};

} // namespace c10::remat
