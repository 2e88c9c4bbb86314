#include <c10/remat/policy/PlannedPolicy.h>

#include "PolicyBench.h"

#include <gtest/gtest.h>

#include <vector>

namespace c10::remat {
namespace {

// Iterations of a chain of 20 ops that is read backwards, each followed by an
// update of parameters.
class PlannedPolicyTest : public testing::Test {
 protected:
  static constexpr int kLength = 20;

  std::vector<VersionId> forward(Bytes size) {
    std::vector<VersionId> values;
    VersionId last = bench.leaf(8);
    for (int i = 0; i < kLength; ++i) {
      last = make(last, size);
      values.push_back(last);
    }
    return values;
  }
  void backward(std::vector<VersionId>& values) {
    for (; !values.empty(); values.pop_back()) {
      bench.kill(make(values.back(), 8));
      bench.kill(values.back());
    }
    ++epoch;
  }
  VersionId make(VersionId input, Bytes size) {
    return bench.op1(10, {input}, size, epoch);
  }

  uint64_t epoch = 0;
  PlannedPolicy policy;
  PolicyBench bench{policy};
};

TEST_F(PlannedPolicyTest, FollowsFromTheSecondIterationOn) {
  auto values = forward(8);
  EXPECT_FALSE(policy.is_following());
  backward(values);
  values = forward(8);
  EXPECT_TRUE(policy.is_following());
  backward(values);
  values = forward(8);
  EXPECT_TRUE(policy.is_following());
}

// The first of the chain is needed last.
TEST_F(PlannedPolicyTest, EvictsWhatIsNeededLast) {
  auto values = forward(8);
  backward(values);
  values = forward(8);
  EXPECT_EQ(bench.index.choose(bench.now, true), values.front());
  EXPECT_GT(
      policy.weight(bench.graph, values[10]),
      policy.weight(bench.graph, values[0]));
}

TEST_F(PlannedPolicyTest, AnotherShapeEndsFollowingUntilTheNextIteration) {
  auto values = forward(8);
  backward(values);
  values = forward(16);
  EXPECT_FALSE(policy.is_following());
  EXPECT_TRUE(bench.index.choose(bench.now, true));
  backward(values);
  values = forward(16);
  EXPECT_TRUE(policy.is_following());
}

// An optimizer's few ops between updates are no iteration.
TEST_F(PlannedPolicyTest, ShortStretchesAreNoIterations) {
  auto values = forward(8);
  backward(values);
  for (int i = 0; i < 5; ++i) {
    bench.kill(make(bench.leaf(8), 8));
    ++epoch;
  }
  values = forward(8);
  EXPECT_TRUE(policy.is_following());
}

TEST_F(PlannedPolicyTest, KeepsWhatAbsentValuesAreReplayedFrom) {
  auto values = forward(8);
  backward(values);
  values = forward(8);
  EXPECT_FALSE(policy.keeps(bench.graph, values[3], false));
  bench.evict(values[4]);
  EXPECT_TRUE(policy.keeps(bench.graph, values[3], false));
}

} // namespace
} // namespace c10::remat
