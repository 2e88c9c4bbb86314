#pragma once

#include "../Export.h"
#include "../Ids.h"

#include <cstddef>
#include <vector>

namespace c10::remat {

// Neighboring blocks of a segment, or all of them.
struct Window {
  size_t segment;
  size_t first;
  size_t end; // one past the last
  // Of these, ascending, those whose bytes stay: they slide to the lower end
  // once the others are free.
  std::vector<size_t> sliding = {};
};

// A block as the choice sees it.
struct PricedBlock {
  static constexpr double kBlocked = -1; // cannot be done

  Bytes size = 0;
  double cost = 0; // of clearing it; 0: it is free
  double slide_cost = kBlocked; // of sliding it
};

struct PricedSegment {
  std::vector<PricedBlock> blocks; // in the order of addresses
  bool serves_request = false;
  bool releasable = false;
};

struct WindowChoice {
  std::vector<Window> windows; // empty: there is none
  double cost = 0;
};

// What to clear so that a block of `size` bytes fits: either a window of
// neighboring blocks of a segment that serves the request (Coop: Zhang et al.,
// "Coop: Memory is not a Commodity", NeurIPS 2023), or whole segments of at
// least `shortage` bytes, which can be given back and had again as one. The
// cheapest; a window where both cost the same, and the first of those, or the
// `last`. A few passes over the blocks of each segment; one if none can slide.
REMAT_API WindowChoice choose_windows(
    const std::vector<PricedSegment>& segments,
    Bytes size,
    Bytes shortage,
    bool last = false);

} // namespace c10::remat
