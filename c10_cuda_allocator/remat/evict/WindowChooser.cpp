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
void offer_window(
    const PricedSegment& segment,
    size_t number,
    Bytes size,
    Choice& best) {
  size_t first = 0;
  Bytes bytes = 0;
  double cost = 0;
  for (size_t i = 0; i < segment.blocks.size(); ++i) {
    const PricedBlock& block = segment.blocks[i];
    if (is_blocked(block)) {
      first = i + 1;
      bytes = 0;
      cost = 0;
      continue;
    }
    bytes += block.size;
    cost += block.cost;
    while (bytes - segment.blocks[first].size >= size) {
      bytes -= segment.blocks[first].size;
      cost -= segment.blocks[first].cost;
      ++first;
    }
    if (bytes >= size && cost < best.cost) {
      best = {{{number, first, i + 1}}, cost};
    }
  }
}

// Whole segments, those that cost the least per byte first.
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
  Choice choice;
  Bytes bytes = 0;
  double cost = 0;
  for (const Candidate& candidate : candidates) {
    if (bytes >= shortage) {
      break;
    }
    bytes += candidate.bytes;
    cost += candidate.cost;
    choice.windows.push_back(
        {candidate.number, 0, segments[candidate.number].blocks.size()});
  }
  if (bytes >= shortage && !choice.windows.empty()) {
    choice.cost = cost;
  }
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
