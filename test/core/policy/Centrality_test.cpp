#include <c10/remat/policy/Centrality.h>

#include "PolicyBench.h"

#include <c10/remat/policy/LruPolicy.h>
#include <gtest/gtest.h>

namespace c10::remat {
namespace {

TEST(CentralityTest, FollowsTheCheapestOfTwoPaths) {
  LruPolicy policy;
  PolicyBench bench(policy);
  const VersionId x = bench.op1(1, {}, 1);
  const VersionId cheap = bench.op1(1, {x}, 1);
  const VersionId dear = bench.op1(9, {x}, 1);
  const VersionId end = bench.op1(1, {cheap, dear}, 1);
  Centrality centrality;
  centrality.recompute(bench.graph);
  // Records x, c, d, e; paths x-c, x-d, x-c-e, c-e, d-e. Shares: x 3 (to c, d
  // and e), cheap 2 (from x and c to e), dear 1 (from d to e), end 0.
  EXPECT_DOUBLE_EQ(centrality(bench.graph, x), 1);
  EXPECT_DOUBLE_EQ(centrality(bench.graph, cheap), 2.0 / 3);
  EXPECT_DOUBLE_EQ(centrality(bench.graph, dear), 1.0 / 3);
  EXPECT_DOUBLE_EQ(centrality(bench.graph, end), 0);
}

TEST(CentralityTest, SharesPathsOfEqualCost) {
  LruPolicy policy;
  PolicyBench bench(policy);
  const VersionId x = bench.op1(1, {}, 1);
  const VersionId left = bench.op1(5, {x}, 1);
  const VersionId right = bench.op1(5, {x}, 1);
  bench.op1(1, {left, right}, 1);
  Centrality centrality;
  centrality.recompute(bench.graph);
  // x 3; left and right each 1 for itself and half a path from x.
  EXPECT_DOUBLE_EQ(centrality(bench.graph, left), 1.5 / 3);
  EXPECT_DOUBLE_EQ(centrality(bench.graph, right), 1.5 / 3);
}

TEST(CentralityTest, KnowsNothingOfLaterVersions) {
  LruPolicy policy;
  PolicyBench bench(policy);
  Centrality centrality;
  centrality.recompute(bench.graph);
  const VersionId x = bench.op1(1, {}, 1);
  bench.op1(1, {x}, 1);
  EXPECT_EQ(centrality(bench.graph, x), 0);
  centrality.recompute(bench.graph);
  EXPECT_EQ(centrality(bench.graph, x), 1);
}

} // namespace
} // namespace c10::remat
