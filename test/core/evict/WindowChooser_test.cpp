#include <c10/remat/evict/WindowChooser.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace c10::remat {
namespace {

constexpr double kBlocked = PricedBlock::kBlocked;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

PricedSegment serving(std::vector<PricedBlock> blocks) {
  return {std::move(blocks), /*serves_request=*/true, /*releasable=*/false};
}

PricedSegment releasable(std::vector<PricedBlock> blocks) {
  return {std::move(blocks), /*serves_request=*/false, /*releasable=*/true};
}

bool is_window(const Window& window, size_t segment, size_t first, size_t end) {
  return window.segment == segment && window.first == first &&
      window.end == end;
}

TEST(WindowChooserTest, TakesNeighborsThatTogetherAreLargeEnough) {
  // 4 + 4 at cost 2 + 1 beats the single 8 at cost 5.
  const auto chosen =
      choose_windows({serving({{4, 2}, {4, 1}, {8, 5}})}, 8, 100);
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(is_window(chosen[0], 0, 0, 2));
}

TEST(WindowChooserTest, FreeBlocksCostNothing) {
  const auto chosen =
      choose_windows({serving({{4, 9}, {4, 0}, {4, 1}, {4, 0}})}, 12, 100);
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(is_window(chosen[0], 0, 1, 4));
}

TEST(WindowChooserTest, NoWindowCrossesABlockThatStays) {
  EXPECT_TRUE(choose_windows({serving({{4, 1}, {1, kBlocked}, {4, 1}})}, 8, 100)
                  .empty());
}

TEST(WindowChooserTest, WholeSegmentsWhereTheyCostLess) {
  const auto chosen = choose_windows(
      {serving({{8, 10}}), releasable({{4, 1}}), releasable({{4, 2}})}, 8, 8);
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_TRUE(is_window(chosen[0], 1, 0, 1));
  EXPECT_TRUE(is_window(chosen[1], 2, 0, 1));
}

TEST(WindowChooserTest, ASegmentWithABlockThatStaysIsNotReleased) {
  EXPECT_TRUE(
      choose_windows({releasable({{4, 1}, {4, kBlocked}})}, 4, 4).empty());
}

TEST(WindowChooserTest, NoSegmentIsReleasedThatOthersMakeSuperfluous) {
  // The first is the cheapest per byte, but the second is large enough alone.
  const auto chosen = choose_windows(
      {releasable({{4, 1}}), releasable({{4, 1}, {16, 9}})}, 16, 16);
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(is_window(chosen[0], 1, 0, 2));
}

TEST(WindowChooserTest, ALargeCostLeavesNoErrorBehind) {
  // In a running sum, 1e20 would swallow the 2 and leave 0.
  const auto chosen =
      choose_windows({serving({{4, 1e20}, {8, 2}, {8, 1}})}, 8, 100);
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(is_window(chosen[0], 0, 2, 3));
}

// The cheapest of all windows, by looking at each.
double cheapest_window(const std::vector<PricedSegment>& segments, Bytes size) {
  double best = kInfinite;
  for (const PricedSegment& segment : segments) {
    for (size_t first = 0;
         segment.serves_request && first < segment.blocks.size();
         ++first) {
      Bytes bytes = 0;
      double cost = 0;
      for (size_t i = first;
           i < segment.blocks.size() && segment.blocks[i].cost != kBlocked;
           ++i) {
        bytes += segment.blocks[i].size;
        cost += segment.blocks[i].cost;
        if (bytes >= size) {
          best = std::min(best, cost);
        }
      }
    }
  }
  return best;
}

TEST(WindowChooserTest, RandomSegmentsGiveTheCheapestWindow) {
  std::mt19937 random(7);
  const auto below = [&](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
  };
  // Of many magnitudes, and whose sums are exact as long as nothing is rounded.
  const double costs[] = {0, 0x1p-30, 1, 3, 0x1p10, 0x1p60};
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<PricedSegment> segments(1 + below(4));
    for (PricedSegment& segment : segments) {
      segment.serves_request = below(4) != 0;
      const int blocks = below(12);
      for (int i = 0; i < blocks; ++i) {
        const int kind = below(5);
        segment.blocks.push_back(
            {static_cast<Bytes>(1 + below(6)),
             kind == 0 ? kBlocked : costs[below(6)]});
      }
    }
    const Bytes size = 1 + below(20);
    const auto chosen = choose_windows(segments, size, 1u << 30);
    const double expected = cheapest_window(segments, size);
    ASSERT_EQ(chosen.empty(), expected == kInfinite) << "round " << round;
    if (chosen.empty()) {
      continue;
    }
    ++found;
    ASSERT_EQ(chosen.size(), 1u);
    const Window& window = chosen[0];
    Bytes bytes = 0;
    double cost = 0;
    for (size_t i = window.first; i < window.end; ++i) {
      const PricedBlock& block = segments[window.segment].blocks[i];
      ASSERT_NE(block.cost, kBlocked);
      bytes += block.size;
      cost += block.cost;
    }
    EXPECT_GE(bytes, size);
    EXPECT_DOUBLE_EQ(cost, expected) << "round " << round;
  }
  EXPECT_GT(found, 1000);
}

} // namespace
} // namespace c10::remat
