#include "WindowChooser.h"

#include <algorithm>
#include <limits>

namespace c10::remat {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Choice {
  std::vector<Window> windows;
  double cost = kInfinite;
};

bool is_blocked(const PricedBlock& block) {
  return block.cost == PricedBlock::kBlocked;
}

// Of `segment`. Costs are not negative, so that the cheapest window that ends
// at a block is the shortest one that is large enough.
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
    Choice& best) {
  const std::vector<PricedBlock>& blocks = segment.blocks;
  std::vector<double> to_middle(blocks.size() + 1);
  size_t first = 0;
  size_t middle = 0;
  Bytes bytes = 0;
  double from_middle = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (is_blocked(blocks[i])) {
      first = middle = i + 1;
      bytes = 0;
      from_middle = 0;
      continue;
    }
    bytes += blocks[i].size;
    from_middle += blocks[i].cost;
    for (; bytes - blocks[first].size >= size; ++first) {
      bytes -= blocks[first].size;
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
    if (bytes >= size && cost < best.cost) {
      best = {{{number, first, i + 1}}, cost};
    }
  }
}

// Whole segments, those that cost the least per byte first, without those that
// turn out to be superfluous beside the last ones.
Choice whole_segments(
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
  Choice choice;
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

std::vector<Window> choose_windows(
    const std::vector<PricedSegment>& segments,
    Bytes size,
    Bytes shortage) {
  Choice best;
  for (size_t number = 0; number < segments.size(); ++number) {
    if (segments[number].serves_request) {
      offer_window(segments[number], number, size, best);
    }
  }
  Choice whole = whole_segments(segments, shortage);
  if (whole.cost < best.cost) {
    best = std::move(whole);
  }
  return best.cost == kInfinite ? std::vector<Window>() : best.windows;
}

} // namespace c10::remat
