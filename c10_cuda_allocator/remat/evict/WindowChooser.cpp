#include "WindowChooser.h"

#include <algorithm>
#include <limits>

namespace c10::remat {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

bool is_blocked(const PricedBlock& block) {
  return block.cost == PricedBlock::kBlocked;
}

// What becomes of a block in a window.
struct Treatment {
  Bytes bytes = 0; // that it yields
  double cost = 0;
  bool blocked = false;
};

// Note [What slides]
// A block that slides costs its copy and yields nothing; one that is cleared
// yields its bytes. Which blocks of a window should slide is a knapsack. It is
// solved as usual for many items: bytes have a price, `per_byte`, and a block
// is cleared where that costs less than sliding it and buying its bytes. For
// each price one pass finds the cheapest window; prices around what the best
// window without sliding pays are tried. So the choice is at least as good as
// clearing all, and as sliding whatever is cheaper to slide.
Treatment treat(const PricedBlock& block, double per_byte) {
  const bool can_slide = block.slide_cost != PricedBlock::kBlocked;
  if (can_slide &&
      (is_blocked(block) ||
       block.slide_cost + per_byte * static_cast<double>(block.size) <
           block.cost)) {
    return {0, block.slide_cost};
  }
  return {block.size, block.cost, is_blocked(block)};
}

constexpr double kAroundThePrice[] = {2, 1, 0.5, 0.25, 0};

// Of `segment`. Costs are not negative, so that the cheapest window that ends
// at a block is the shortest one that yields enough.
//
// Note [Sums that nothing is subtracted from]
// Costs differ by many orders of magnitude, and taking a large one off a sum
// would leave its rounding error in place of the small ones. The window's cost
// is therefore the sum of two: of its blocks before `middle`, as sums from each
// of them to `middle`, made anew when the window has left them behind, and of
// those from there on.
void offer_window(
    const PricedSegment& segment,
    size_t number,
    Bytes size,
    double per_byte,
    bool last,
    WindowChoice& best) {
  std::vector<Treatment> blocks;
  blocks.reserve(segment.blocks.size());
  for (const PricedBlock& block : segment.blocks) {
    blocks.push_back(treat(block, per_byte));
  }
  std::vector<double> to_middle(blocks.size() + 1);
  size_t first = 0;
  size_t middle = 0;
  Bytes bytes = 0;
  double from_middle = 0;
  Window* found = nullptr;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].blocked) {
      first = middle = i + 1;
      bytes = 0;
      from_middle = 0;
      continue;
    }
    bytes += blocks[i].bytes;
    from_middle += blocks[i].cost;
    for (; bytes - blocks[first].bytes >= size; ++first) {
      bytes -= blocks[first].bytes;
      if (first == middle) {
        middle = i + 1;
        from_middle = 0;
        to_middle[middle] = 0;
        for (size_t j = middle; j-- > first;) {
          to_middle[j] = to_middle[j + 1] + blocks[j].cost;
        }
      }
    }
    const double cost = (first < middle ? to_middle[first] : 0) + from_middle;
    if (bytes >= size && (cost < best.cost || (last && cost == best.cost))) {
      best = {{{number, first, i + 1}}, cost};
      found = &best.windows.front();
    }
  }
  for (size_t i = found == nullptr ? 0 : found->first;
       found != nullptr && i < found->end;
       ++i) {
    if (blocks[i].bytes == 0) {
      found->sliding.push_back(i);
    }
  }
}

// Whole segments, those that cost the least per byte first, without those that
// turn out to be superfluous beside the last ones.
WindowChoice whole_segments(
    const std::vector<PricedSegment>& segments,
    Bytes shortage) {
  struct Candidate {
    size_t number;
    Bytes bytes = 0;
    double cost = 0;
  };
  std::vector<Candidate> candidates;
  for (size_t number = 0; number < segments.size(); ++number) {
    const PricedSegment& segment = segments[number];
    if (!segment.releasable ||
        std::any_of(
            segment.blocks.begin(), segment.blocks.end(), &is_blocked)) {
      continue;
    }
    Candidate candidate{number};
    for (const PricedBlock& block : segment.blocks) {
      candidate.bytes += block.size;
      candidate.cost += block.cost;
    }
    candidates.push_back(candidate);
  }
  std::stable_sort(
      candidates.begin(),
      candidates.end(),
      [](const Candidate& a, const Candidate& b) {
        return a.cost * static_cast<double>(b.bytes) <
            b.cost * static_cast<double>(a.bytes);
      });
  Bytes bytes = 0;
  size_t taken = 0;
  while (taken < candidates.size() && bytes < shortage) {
    bytes += candidates[taken++].bytes;
  }
  WindowChoice choice{{}, kInfinite};
  if (bytes < shortage || taken == 0) {
    return choice;
  }
  choice.cost = 0;
  while (taken-- > 0) {
    const Candidate& candidate = candidates[taken];
    if (bytes - candidate.bytes >= shortage) {
      bytes -= candidate.bytes;
      continue;
    }
    choice.cost += candidate.cost;
    choice.windows.push_back(
        {candidate.number, 0, segments[candidate.number].blocks.size()});
  }
  std::reverse(choice.windows.begin(), choice.windows.end());
  return choice;
}

} // namespace

WindowChoice choose_windows(
    const std::vector<PricedSegment>& segments,
    Bytes size,
    Bytes shortage,
    bool last) {
  WindowChoice best{{}, kInfinite};
  const auto offer_windows = [&](double per_byte) {
    for (size_t number = 0; number < segments.size(); ++number) {
      if (segments[number].serves_request) {
        offer_window(segments[number], number, size, per_byte, last, best);
      }
    }
  };
  offer_windows(kInfinite);
  const auto slides = [](const PricedSegment& segment) {
    return segment.serves_request &&
        std::any_of(
               segment.blocks.begin(),
               segment.blocks.end(),
               [](const PricedBlock& block) {
                 return block.slide_cost != PricedBlock::kBlocked;
               });
  };
  if (std::any_of(segments.begin(), segments.end(), slides)) {
    const double price =
        best.windows.empty() ? 0 : best.cost / static_cast<double>(size);
    for (const double factor : kAroundThePrice) {
      offer_windows(factor * price);
    }
  }
  WindowChoice whole = whole_segments(segments, shortage);
  if (whole.cost < best.cost) {
    best = std::move(whole);
  }
  return best;
}

} // namespace c10::remat
