#pragma once

#include "../Export.h"
#include "../Ids.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace c10::remat {

// Neighboring blocks of a segment, or all of them.
struct Window {
  size_t segment;
  size_t first;
  size_t end; // one past the last
};

// A block as the choice sees it.
struct PricedBlock {
  static constexpr double kBlocked = -1; // cannot be freed

  Bytes size = 0;
  double cost = 0; // of clearing it; 0: it is free
};

struct PricedSegment {
  std::vector<PricedBlock> blocks; // in the order of addresses
  bool serves_request = false;
  bool releasable = false;
};

// What to clear so that a block of `size` bytes fits: either a window of
// neighboring blocks of a segment that serves the request (Coop: Zhang et al.,
// "Coop: Memory is not a Commodity", NeurIPS 2023), or whole segments of at
// least `shortage` bytes, which can be given back and had again as one. The
// cheapest; a window where both cost the same, and the first of those. One pass
// over the blocks of each segment. Empty: there is none.
REMAT_API std::vector<Window> choose_windows(
    const std::vector<PricedSegment>& segments,
    Bytes size,
    Bytes shortage);

} // namespace c10::remat
