#include <c10/remat/policy/CentralityPolicy.h>
#include <c10/remat/policy/DtrEqPolicy.h>
#include <c10/remat/policy/DtrPolicy.h>
#include <c10/remat/policy/LargestPolicy.h>
#include <c10/remat/policy/LruPolicy.h>
#include <c10/remat/policy/MspsPolicy.h>
#include <c10/remat/policy/PolicyRegistry.h>

#include "PolicyBench.h"

#include <c10/remat/Errors.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace c10::remat {
namespace {

// x -> a -> b -> c -> d, costs 100, 20, 30, 40, sizes 10 each.
struct Chain {
  explicit Chain(EvictionPolicy& policy) : bench(policy) {
    x = bench.leaf(10);
    a = bench.op1(100, {x}, 10);
    b = bench.op1(20, {a}, 10);
    c = bench.op1(30, {b}, 10);
    d = bench.op1(40, {c}, 10);
  }

  PolicyBench bench;
  VersionId x, a, b, c, d;
};

TEST(LruPolicyTest, WeighsAllAlike) {
  LruPolicy policy;
  Chain chain(policy);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.a), 1);
  EXPECT_EQ(chain.bench.index.choose(chain.bench.now, false), chain.a);
}

TEST(LargestPolicyTest, WeighsByInverseSize) {
  LargestPolicy policy;
  Chain chain(policy);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.a), 0.1);
}

TEST(DtrPolicyTest, CountsOwnCostWhereAllIsResident) {
  DtrPolicy policy;
  Chain chain(policy);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.b), 20.0 / 10);
}

TEST(DtrPolicyTest, CountsEvictedAncestorsAndDescendants) {
  DtrPolicy policy;
  Chain chain(policy);
  chain.bench.evict(chain.a);
  chain.bench.evict(chain.c);
  const OpGraph& graph = chain.bench.graph;
  EXPECT_EQ(policy.weight(graph, chain.b), (20.0 + 100 + 30) / 10);
  EXPECT_EQ(policy.weight(graph, chain.d), (40.0 + 30) / 10); // b is resident
  chain.bench.rematerialize(chain.c);
  EXPECT_EQ(policy.weight(graph, chain.b), (20.0 + 100) / 10);
  EXPECT_EQ(policy.weight(graph, chain.d), 40.0 / 10);
}

TEST(DtrPolicyTest, CountsAbsentIntermediates) {
  DtrPolicy policy;
  Chain chain(policy);
  chain.bench.kill(chain.b);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.c), (30.0 + 20) / 10);
}

TEST(DtrPolicyTest, ForgetsDescendantsThatNothingNeeds) {
  DtrPolicy policy;
  Chain chain(policy);
  chain.bench.evict(chain.d);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.c), (30.0 + 40) / 10);
  chain.bench.kill(chain.d);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.c), 30.0 / 10);
}

// Found by RandomPolicyTest, seed 273.
TEST(DtrPolicyTest, ReportsAFallAfterGrowthThatNobodySaw) {
  DtrPolicy policy;
  Chain chain(policy);
  chain.bench.evict(chain.a);
  policy.weight(chain.bench.graph, chain.b);
  std::vector<VersionId> lowered;
  policy.drain_lowered(chain.bench.graph, lowered);
  lowered.clear();
  chain.bench.evict(chain.c);
  chain.bench.rematerialize(chain.a);
  policy.drain_lowered(chain.bench.graph, lowered);
  EXPECT_EQ(std::count(lowered.begin(), lowered.end(), chain.b), 1);
}

TEST(DtrPolicyTest, CountsAnOpWithSeveralOutputsOnce) {
  DtrPolicy policy;
  PolicyBench bench(policy);
  const VersionId x = bench.op1(7, {bench.leaf(1)}, 1);
  const auto parts = bench.op(50, {x}, {1, 1, 1});
  const VersionId y = bench.op1(3, {parts[0], parts[1]}, 1);
  bench.evict(parts[0]);
  bench.evict(parts[1]);
  EXPECT_EQ(policy.weight(bench.graph, x), 7 + 50);
  EXPECT_EQ(policy.weight(bench.graph, y), 3 + 50);
  EXPECT_EQ(policy.weight(bench.graph, parts[2]), 50);
}

TEST(DtrPolicyTest, NeverGivesZeroOrMoreThanFinite) {
  DtrPolicy policy;
  PolicyBench bench(policy);
  const VersionId free_op = bench.op1(/*cost=*/0, {}, 1);
  EXPECT_EQ(policy.weight(bench.graph, free_op), 1);
  EXPECT_EQ(bench.index.choose(bench.now, false), free_op);
}

TEST(DtrPolicyTest, FallsBackToTheEstimateBeyondItsBounds) {
  DtrPolicy policy;
  PolicyBench bench(policy);
  VersionId last = bench.leaf(1);
  std::vector<VersionId> chain;
  for (int i = 0; i < 1000; ++i) {
    chain.push_back(last = bench.op1(1, {last}, 1));
  }
  const VersionId end = bench.op1(1, {last}, 1);
  for (const VersionId id : chain) {
    bench.evict(id);
  }
  EXPECT_EQ(policy.weight(bench.graph, end), 1001);
}

TEST(MspsPolicyTest, CountsAncestorsOnly) {
  MspsPolicy policy;
  Chain chain(policy);
  chain.bench.evict(chain.a);
  chain.bench.evict(chain.c);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.b), (20.0 + 100) / 10);
}

TEST(DtrEqPolicyTest, CountsWholeSets) {
  DtrEqPolicy policy;
  Chain chain(policy);
  chain.bench.evict(chain.b);
  chain.bench.evict(chain.c);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.a), (100.0 + 20 + 30) / 10);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.d), (40.0 + 20 + 30) / 10);
  chain.bench.rematerialize(chain.b);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.a), 100.0 / 10);
  EXPECT_EQ(policy.weight(chain.bench.graph, chain.d), (40.0 + 30) / 10);
}

TEST(DtrEqPolicyTest, LinksInAnyDirection) {
  DtrEqPolicy policy;
  PolicyBench bench(policy);
  const VersionId x = bench.op1(1, {}, 1);
  const VersionId left = bench.op1(10, {x}, 1);
  const VersionId right = bench.op1(100, {x}, 1);
  const VersionId end = bench.op1(1000, {right}, 1);
  for (const VersionId id : {x, left, right}) {
    bench.evict(id);
  }
  // e* of `end` has no `left`; its set has.
  EXPECT_EQ(policy.weight(bench.graph, end), 1000 + 100 + 1 + 10);
}

TEST(CentralityPolicyTest, WeighsTheMiddleOfAChainMost) {
  CentralityPolicy policy;
  PolicyBench bench(policy);
  policy.on_residual(0, 1000);
  VersionId last = bench.leaf(1);
  std::vector<VersionId> chain;
  for (int i = 0; i < 64; ++i) { // the last one starts the computation
    chain.push_back(last = bench.op1(1, {last}, 1));
  }
  // Of the 16 sources 0, 4 .. 60, version i is on the paths from those at or
  // before i to each record behind i: (i / 4 + 1) x (63 - i). The highest are
  // 28, at 8 x 35 = 280, and 32, at 9 x 31 = 279.
  const double gain = CentralityPolicy::kGain;
  EXPECT_DOUBLE_EQ(policy.weight(bench.graph, chain[28]), 1 + gain);
  EXPECT_DOUBLE_EQ(policy.weight(bench.graph, chain[32]), 1 + gain * 279 / 280);
  EXPECT_DOUBLE_EQ(policy.weight(bench.graph, chain[63]), 1);
}

TEST(CentralityPolicyTest, LocksWithinWhatIsFreeAndUnlocksUnderPressure) {
  CentralityPolicy policy;
  PolicyBench bench(policy);
  VersionId last = bench.leaf(1);
  std::vector<VersionId> chain;
  for (int i = 0; i < 1000; ++i) {
    policy.on_residual(20, 1000);
  }
  for (int i = 0; i < 64; ++i) {
    chain.push_back(last = bench.op1(1, {last}, 1));
  }
  const auto locked_count = [&] {
    return std::count_if(chain.begin(), chain.end(), [&](VersionId id) {
      return policy.is_locked(bench.graph, id);
    });
  };
  EXPECT_TRUE(policy.is_locked(bench.graph, chain[28]));
  // Half of about 20 bytes, with none of those that rank equal.
  EXPECT_GE(locked_count(), 6);
  EXPECT_LE(locked_count(), 10);
  const uint64_t epoch = policy.lock_epoch();
  for (int i = 0; i < 1000; ++i) {
    policy.on_residual(0, 1000);
  }
  EXPECT_EQ(locked_count(), 0);
  EXPECT_NE(policy.lock_epoch(), epoch);
}

TEST(CentralityPolicyTest, ComputesNothingWithoutABudget) {
  CentralityPolicy policy;
  PolicyBench bench(policy);
  policy.on_residual(0, std::numeric_limits<Bytes>::max());
  VersionId last = bench.leaf(1);
  const VersionId first = last = bench.op1(1, {last}, 1);
  for (int i = 0; i < 1000; ++i) {
    last = bench.op1(1, {last}, 1);
  }
  EXPECT_EQ(policy.weight(bench.graph, first), 1);
}

TEST(PolicyRegistryTest, MakesEachPolicyByItsName) {
  for (const std::string& name : policy_names()) {
    EXPECT_EQ(make_policy(name)->name(), name);
  }
  EXPECT_NO_THROW(make_policy(default_policy_name()));
}

TEST(PolicyRegistryTest, NamesTheKnownOnesForAnUnknownOne) {
  try {
    make_policy("belady");
    FAIL();
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("\"belady\""), std::string::npos);
    EXPECT_NE(text.find("dtr_eq"), std::string::npos);
  }
}

} // namespace
} // namespace c10::remat
