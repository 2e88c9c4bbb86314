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
      choose_windows({serving({{4, 2}, {4, 1}, {8, 5}})}, 8, 100).windows;
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(is_window(chosen[0], 0, 0, 2));
}

TEST(WindowChooserTest, FreeBlocksCostNothing) {
  const auto chosen =
      choose_windows({serving({{4, 9}, {4, 0}, {4, 1}, {4, 0}})}, 12, 100)
          .windows;
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(is_window(chosen[0], 0, 1, 4));
}

TEST(WindowChooserTest, TakesTheLastOfEqualOnesIfAsked) {
  const std::vector<PricedSegment> segments{
      serving({{4, 0}, {8, 1}, {4, 0}, {8, 1}, {4, 0}})};
  for (const bool last : {false, true}) {
    const auto free = choose_windows(segments, 4, 100, last).windows;
    ASSERT_EQ(free.size(), 1u);
    EXPECT_TRUE(is_window(free[0], 0, last ? 4 : 0, last ? 5 : 1));
    const auto cheap = choose_windows(segments, 12, 100, last).windows;
    ASSERT_EQ(cheap.size(), 1u);
    EXPECT_TRUE(is_window(cheap[0], 0, last ? 3 : 0, last ? 5 : 2));
  }
  // The cheapest all the same.
  const auto cheapest =
      choose_windows({serving({{4, 1}, {4, 2}})}, 4, 100, /*last=*/true)
          .windows;
  ASSERT_EQ(cheapest.size(), 1u);
  EXPECT_TRUE(is_window(cheapest[0], 0, 0, 1));
}

TEST(WindowChooserTest, NoWindowCrossesABlockThatStays) {
  EXPECT_TRUE(choose_windows({serving({{4, 1}, {1, kBlocked}, {4, 1}})}, 8, 100)
                  .windows.empty());
}

TEST(WindowChooserTest, WholeSegmentsWhereTheyCostLess) {
  const auto chosen =
      choose_windows(
          {serving({{8, 10}}), releasable({{4, 1}}), releasable({{4, 2}})},
          8,
          8)
          .windows;
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_TRUE(is_window(chosen[0], 1, 0, 1));
  EXPECT_TRUE(is_window(chosen[1], 2, 0, 1));
}

TEST(WindowChooserTest, ASegmentWithABlockThatStaysIsNotReleased) {
  EXPECT_TRUE(choose_windows({releasable({{4, 1}, {4, kBlocked}})}, 4, 4)
                  .windows.empty());
}

TEST(WindowChooserTest, NoSegmentIsReleasedThatOthersMakeSuperfluous) {
  // The first is the cheapest per byte, but the second is large enough alone.
  const auto chosen =
      choose_windows(
          {releasable({{4, 1}}), releasable({{4, 1}, {16, 9}})}, 16, 16)
          .windows;
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(is_window(chosen[0], 1, 0, 2));
}

TEST(WindowChooserTest, ALargeCostLeavesNoErrorBehind) {
  // In a running sum, 1e20 would swallow the 2 and leave 0.
  const auto chosen =
      choose_windows({serving({{4, 1e20}, {8, 2}, {8, 1}})}, 8, 100).windows;
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(is_window(chosen[0], 0, 2, 3));
}

using Positions = std::vector<size_t>;

TEST(WindowChooserTest, SlidesWhatLiesBetweenGaps) {
  // Copying the leaf and the dear one costs 3; evicting would cost 50 or more.
  const auto choice = choose_windows(
      {serving({{4, 0}, {8, kBlocked, 1}, {2, 0}, {8, 50, 2}, {4, 0}})},
      10,
      100);
  ASSERT_EQ(choice.windows.size(), 1u);
  EXPECT_TRUE(is_window(choice.windows[0], 0, 0, 5));
  EXPECT_EQ(choice.windows[0].sliding, (Positions{1, 3}));
  EXPECT_EQ(choice.cost, 3);
}

TEST(WindowChooserTest, SlidesSomeAndClearsOthers) {
  // 2 + 4 free and 4 cleared at cost 1 are 10; the 8 slides at cost 3.
  const auto choice = choose_windows(
      {serving({{2, 0}, {4, 1, 2}, {8, 20, 3}, {4, 0}})}, 10, 100);
  ASSERT_EQ(choice.windows.size(), 1u);
  EXPECT_TRUE(is_window(choice.windows[0], 0, 0, 4));
  EXPECT_EQ(choice.windows[0].sliding, (Positions{2}));
  EXPECT_EQ(choice.cost, 4);
}

TEST(WindowChooserTest, ClearsMoreWhereThatSavesADearCopy) {
  // Each block would rather slide, but then the window must reach over the
  // last one.
  const auto choice = choose_windows(
      {serving({{4, 0}, {4, 4, 3}, {4, 4, 3}, {4, kBlocked, 90}, {8, 0}})},
      12,
      100);
  ASSERT_EQ(choice.windows.size(), 1u);
  EXPECT_TRUE(is_window(choice.windows[0], 0, 0, 3));
  EXPECT_TRUE(choice.windows[0].sliding.empty());
  EXPECT_EQ(choice.cost, 8);
}

TEST(WindowChooserTest, WhatNeitherMovesNorGoesEndsAWindow) {
  EXPECT_TRUE(
      choose_windows(
          {serving({{4, 0}, {1, kBlocked}, {2, 9, 1}, {4, 0}})}, 12, 100)
          .windows.empty());
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
    const auto chosen = choose_windows(segments, size, 1u << 30).windows;
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

// The same with every choice of what slides.
double cheapest_with_slides(const PricedSegment& segment, Bytes size) {
  double best = kInfinite;
  const std::vector<PricedBlock>& blocks = segment.blocks;
  for (size_t first = 0; first < blocks.size(); ++first) {
    for (size_t end = first + 1; end <= blocks.size(); ++end) {
      for (size_t slides = 0; slides < size_t{1} << (end - first); ++slides) {
        Bytes bytes = 0;
        double cost = 0;
        for (size_t i = first; i < end; ++i) {
          const bool slid = (slides >> (i - first) & 1) != 0;
          const double own = slid ? blocks[i].slide_cost : blocks[i].cost;
          cost = own == kBlocked ? kInfinite : cost + own;
          bytes += slid ? 0 : blocks[i].size;
        }
        best = bytes >= size ? std::min(best, cost) : best;
      }
    }
  }
  return best;
}

TEST(WindowChooserTest, RandomSlidesAreWorthTheirPrice) {
  std::mt19937 random(11);
  const auto below = [&](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
  };
  int found = 0;
  int slid = 0;
  double excess = 0;
  for (int round = 0; round < 2000; ++round) {
    PricedSegment segment = serving({});
    for (int i = below(8); i >= 0; --i) {
      const auto size = static_cast<Bytes>(1 + below(9));
      const int kind = below(8);
      segment.blocks.push_back(
          kind < 3        ? PricedBlock{size, 0}
              : kind == 3 ? PricedBlock{size, kBlocked}
              : kind == 4
              ? PricedBlock{size, kBlocked, 1.0 + below(30)}
              : PricedBlock{size, 1.0 + below(30), 1.0 + below(30)});
    }
    const Bytes size = 1 + below(20);
    const WindowChoice choice = choose_windows({segment}, size, 1u << 30);
    const double cheapest = cheapest_with_slides(segment, size);
    ASSERT_EQ(choice.windows.empty(), cheapest == kInfinite) << round;
    if (choice.windows.empty()) {
      continue;
    }
    ++found;
    const Window& window = choice.windows[0];
    Bytes bytes = 0;
    double cost = 0;
    for (size_t i = window.first; i < window.end; ++i) {
      const PricedBlock& block = segment.blocks[i];
      const bool slides =
          std::count(window.sliding.begin(), window.sliding.end(), i) != 0;
      ASSERT_NE(slides ? block.slide_cost : block.cost, kBlocked);
      cost += slides ? block.slide_cost : block.cost;
      bytes += slides ? 0 : block.size;
    }
    slid += window.sliding.empty() ? 0 : 1;
    EXPECT_GE(bytes, size);
    EXPECT_DOUBLE_EQ(cost, choice.cost) << round;
    EXPECT_GE(cost, cheapest) << round;
    EXPECT_LE(cost, cheapest_window({segment}, size)) << round;
    excess += cheapest == 0 ? 0 : cost / cheapest - 1;
  }
  EXPECT_GT(found, 1000);
  EXPECT_GT(slid, 100);
  EXPECT_LT(excess / found, 0.02);
}

} // namespace
} // namespace c10::remat
