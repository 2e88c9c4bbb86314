#include <c10/remat/sim/MinCut.h>

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace c10::remat {
namespace {

struct Arc {
  uint32_t from;
  uint32_t to;
  int64_t capacity;
};

// Of the arcs that leave the nodes in `side`, a bit each.
int64_t cut_of(const std::vector<Arc>& arcs, uint32_t side) {
  int64_t total = 0;
  for (const Arc& arc : arcs) {
    if ((side >> arc.from & 1) != 0 && (side >> arc.to & 1) == 0) {
      total += arc.capacity;
    }
  }
  return total;
}

TEST(MinCutTest, IsTheLeastOfAllCuts) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const uint32_t nodes = 2 + random() % 8;
    std::vector<Arc> arcs(random() % 24);
    MinCut cut(nodes);
    for (Arc& arc : arcs) {
      arc = {
          static_cast<uint32_t>(random() % nodes),
          static_cast<uint32_t>(random() % nodes),
          static_cast<int64_t>(random() % 10)};
      cut.add_link(arc.from, arc.to, arc.capacity);
    }
    ASSERT_TRUE(cut.solve());
    uint32_t found = 0;
    for (uint32_t node = 0; node < nodes; ++node) {
      found |= cut.is_at_source(node) ? 1U << node : 0;
    }
    ASSERT_EQ(found & 3, 1U << MinCut::kSource);
    for (uint32_t side = 0; side < 1U << nodes; ++side) {
      if ((side & 3) == 1U << MinCut::kSource) {
        EXPECT_LE(cut_of(arcs, found), cut_of(arcs, side));
      }
    }
  }
}

TEST(MinCutTest, CapacitiesCanBeChanged) {
  MinCut cut(3);
  cut.add_link(MinCut::kSource, 2, 5);
  const uint32_t link = cut.add_link(2, MinCut::kSink, 3);
  ASSERT_TRUE(cut.solve());
  EXPECT_TRUE(cut.is_at_source(2));
  cut.set_capacity(link, 8);
  ASSERT_TRUE(cut.solve());
  EXPECT_FALSE(cut.is_at_source(2));
}

TEST(MinCutTest, EndsWhenItMayNotGoOn) {
  MinCut cut(2);
  cut.add_link(MinCut::kSource, MinCut::kSink, 1);
  const std::function<bool()> no = [] { return false; };
  EXPECT_FALSE(cut.solve(&no));
}

// A path of a hundred thousand nodes needs no stack.
TEST(MinCutTest, PathsMayBeLong) {
  constexpr uint32_t kNodes = 100000;
  MinCut cut(kNodes);
  cut.add_link(MinCut::kSource, 2, 9);
  for (uint32_t node = 2; node + 1 < kNodes; ++node) {
    cut.add_link(node, node + 1, node == 5000 ? 4 : 7);
  }
  cut.add_link(kNodes - 1, MinCut::kSink, 9);
  ASSERT_TRUE(cut.solve());
  EXPECT_TRUE(cut.is_at_source(5000));
  EXPECT_FALSE(cut.is_at_source(5001));
}

} // namespace
} // namespace c10::remat
