#include <c10/remat/policy/PlacementPlan.h>
#include <c10/remat/policy/PlannedPolicy.h>

#include "PolicyBench.h"

#include <gtest/gtest.h>

#include <memory>
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
    return bench.op1(cost, {input}, size, epoch);
  }

  uint64_t epoch = 0;
  CostNs cost = 10; // of each op
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

// Each is expected to be like the last, and found out at its first op not to
// be.
TEST_F(PlannedPolicyTest, FollowsIterationsThatAlternate) {
  for (int i = 0; i < 2; ++i) {
    auto values = forward(8);
    backward(values);
    values = forward(16);
    backward(values);
  }
  auto values = forward(8);
  EXPECT_TRUE(policy.is_following());
  EXPECT_EQ(bench.index.choose(bench.now, true), values.front());
  backward(values);
  values = forward(16);
  EXPECT_TRUE(policy.is_following());
}

TEST_F(PlannedPolicyTest, ChangesCourseWhereTwoIterationsPart) {
  const auto iterate = [&](Bytes last) {
    auto values = forward(8);
    values.push_back(make(values.back(), last));
    EXPECT_EQ(policy.is_following(), epoch >= 2);
    backward(values);
  };
  for (int i = 0; i < 3; ++i) {
    iterate(24);
    iterate(40);
  }
}

TEST_F(PlannedPolicyTest, RemembersTheLastFewIterations) {
  const auto most = static_cast<int>(PlannedPolicy::kMostKnown);
  for (int i = 0; i <= most; ++i) {
    auto values = forward(8 + i);
    backward(values);
  }
  auto values = forward(8);
  EXPECT_FALSE(policy.is_following());
  backward(values);
  values = forward(8 + most);
  EXPECT_TRUE(policy.is_following());
}

// As in a program that only infers.
TEST_F(PlannedPolicyTest, ForgetsAStretchThatDoesNotEnd) {
  const VersionId leaf = bench.leaf(8);
  for (uint32_t i = 0; i < PlannedPolicy::kLongEnough + 10; ++i) {
    bench.kill(make(leaf, 8));
  }
  ++epoch;
  bench.kill(make(leaf, 8));
  EXPECT_FALSE(policy.is_following()); // nothing was learned
}

// As where gradients of many small batches are accumulated.
TEST_F(PlannedPolicyTest, LearnsALongStretchInWhichManyAreAlive) {
  const VersionId leaf = bench.leaf(8);
  std::vector<VersionId> alive;
  for (uint32_t i = 0; i < 100; ++i) {
    alive.push_back(make(leaf, 8));
  }
  for (uint32_t i = 0; i < PlannedPolicy::kLongEnough + 10; ++i) {
    bench.kill(make(leaf, 8));
  }
  ++epoch;
  bench.kill(make(leaf, 8));
  EXPECT_TRUE(policy.is_following());
}

class PlansTest : public PlannedPolicyTest {
 protected:
  void iterate(Bytes size, Bytes budget = kBudget) {
    policy.on_residual(0, budget);
    auto values = forward(size);
    policy.on_pressure(kRoom);
    backward(values);
  }

  // Answers with `tuning`, which may be null. False: nothing was asked for.
  bool answer(std::shared_ptr<const Tuning> tuning = nullptr) {
    const auto request = plans->poll();
    if (!request) {
      return false;
    }
    PlanAnswer answer;
    answer.iteration = request->iteration;
    answer.budget = request->budget;
    answer.is_found = true;
    answer.tuning = std::move(tuning);
    answer.candidates = 5;
    plans->answer(answer);
    return true;
  }
  void plan(std::shared_ptr<const Tuning> tuning) {
    plans->open();
    for (int i = 0; i < 3; ++i) {
      iterate(8);
    }
    ASSERT_TRUE(answer(std::move(tuning)));
  }
  // Every other value stays; the others are evicted two ops after their use.
  static std::shared_ptr<const Tuning> two_ends() {
    auto tuning = std::make_shared<Tuning>();
    tuning->foreseen.until = kLength;
    for (uint32_t i = 0; i < kLength; ++i) {
      tuning->foreseen.evicted_at.push_back(
          i % 2 == 0 ? Foreseen::kStays : i + 4);
    }
    return tuning;
  }
  void plan_with_two_ends() {
    plan(two_ends());
  }

  static constexpr Bytes kBudget = 1000;
  static constexpr Bytes kRoom = 900;
  std::shared_ptr<PlanExchange> plans = policy.plan_exchange();
};

TEST_F(PlansTest, AsksOnceAnIterationWasRepeatedUnderPressure) {
  plans->open();
  iterate(8);
  EXPECT_EQ(policy.program_log(), nullptr); // only now it is known to be short
  iterate(8);
  EXPECT_NE(policy.program_log(), nullptr);
  EXPECT_FALSE(plans->poll());
  iterate(8); // begins when the second has ended
  const auto request = plans->poll();
  ASSERT_TRUE(request);
  EXPECT_EQ(request->budget, kBudget);
  EXPECT_EQ(request->room, kRoom);
  EXPECT_EQ(request->future->ops.size(), 2u * kLength);
  iterate(8);
  EXPECT_EQ(policy.program_log(), nullptr);
}

TEST_F(PlansTest, NothingIsLoggedWhereNobodyMakesPlans) {
  for (int i = 0; i < 5; ++i) {
    iterate(8);
    EXPECT_EQ(policy.program_log(), nullptr);
  }
}

TEST_F(PlansTest, DtrDecidesWhereThePlanSaysSo) {
  plan(/*tuning=*/nullptr);
  EXPECT_TRUE(policy.is_following()); // until the next iteration
  iterate(8);
  EXPECT_FALSE(policy.is_following());
}

TEST_F(PlansTest, SaysWhereBytesLieAndWhatIsLetGo) {
  plan_with_two_ends();
  const auto placement = [&] {
    PlacementPlan plan;
    policy.plan_placement(plan);
    return plan;
  };
  VersionId last = bench.leaf(8);
  std::vector<VersionId> values;
  for (int i = 0; i < kLength; ++i) {
    const PlacementPlan plan = placement();
    if (i > 0) { // the first op begins the iteration, and takes the plan
      EXPECT_TRUE(plan.exists) << i;
      EXPECT_EQ(plan.staying.size(), i % 2 == 0 ? 1u : 0u) << i;
    }
    last = make(last, 8);
    values.push_back(last);
    for (int j = 0; j <= i; ++j) {
      EXPECT_EQ(policy.lets_go(bench.graph, values[j]), j % 2 == 1 && j < i)
          << j << " after " << i;
    }
  }
  bench.kill(make(values.back(), 8));
  EXPECT_TRUE(placement().exists);
  EXPECT_TRUE(placement().staying.empty()); // the moment of most memory is over
  EXPECT_FALSE(policy.lets_go(bench.graph, values[1]));
}

// With the placement, one value comes back in each iteration; without,
// `others`.
class PlacementTrialTest : public PlansTest,
                           public testing::WithParamInterface<int> {
 protected:
  // Was it placed, in each of some iterations?
  std::vector<bool> place(int iterations) {
    std::vector<bool> is_placed;
    for (int i = 0; i < iterations; ++i) {
      policy.on_residual(0, kBudget);
      auto values = forward(8);
      PlacementPlan plan;
      policy.plan_placement(plan);
      is_placed.push_back(plan.exists);
      for (int j = 0; j < (plan.exists ? 1 : GetParam()); ++j) {
        bench.evict(values[j]);
        policy.on_replayed(cost);
        bench.rematerialize(values[j]);
      }
      policy.on_pressure(kRoom);
      backward(values);
    }
    return is_placed;
  }
};

TEST_P(PlacementTrialTest, EndsWithWhatRecomputedLess) {
  plan_with_two_ends();
  const bool at_last = GetParam() >= 1;
  EXPECT_EQ(
      place(6),
      (std::vector<bool>{true, true, false, false, at_last, at_last}));
}

// What was found out of the plan before it holds.
TEST_P(PlacementTrialTest, IsNotMadeAgainForAPlanMadeAnew) {
  plan_with_two_ends();
  place(6);
  cost = 20; // what a plan is made anew for
  place(3);
  ASSERT_TRUE(answer(two_ends()));
  const bool at_last = GetParam() >= 1;
  EXPECT_EQ(place(4), std::vector<bool>(4, at_last));
}

INSTANTIATE_TEST_SUITE_P(, PlacementTrialTest, testing::Values(0, 1, 2));

TEST_F(PlansTest, PlacesNothingAfterMostWasRecomputed) {
  plan_with_two_ends();
  std::vector<bool> is_placed;
  for (int i = 0; i < 4; ++i) {
    policy.on_residual(0, kBudget);
    auto values = forward(8);
    PlacementPlan plan;
    policy.plan_placement(plan);
    is_placed.push_back(plan.exists);
    policy.on_replayed(i == 0 ? 10 * kLength + 10 : 10);
    backward(values);
  }
  // The rest of the trial comes after.
  EXPECT_EQ(is_placed, (std::vector<bool>{true, false, true, false}));
}

// A plan with two ends recomputes 30 ns in each iteration, the next that many.
class PlanRivalTest : public PlansTest,
                      public testing::WithParamInterface<CostNs> {
 protected:
  // Returns how many iterations were run by the plan with two ends.
  int run(int iterations, CostNs recomputed) {
    int count = 0;
    for (int i = 0; i < iterations; ++i) {
      policy.on_residual(0, kBudget);
      auto values = forward(8);
      count += policy.lets_go(bench.graph, values[1]) ? 1 : 0;
      policy.on_replayed(recomputed);
      policy.on_pressure(kRoom);
      backward(values);
    }
    return count;
  }
};

TEST_P(PlanRivalTest, APlanMadeAnewIsDroppedWhereItRecomputesMore) {
  plan_with_two_ends();
  EXPECT_EQ(run(8, 30), 6); // but for the two without placement
  cost = 20; // what a plan is made anew for
  EXPECT_EQ(run(3, 30), 3);
  ASSERT_TRUE(answer(std::make_shared<Tuning>())); // lets go of nothing
  // The first begins with what the other plan has left behind.
  EXPECT_EQ(run(2, GetParam()), 0);
  EXPECT_EQ(run(4, GetParam()), GetParam() > 30 ? 4 : 0);
}

INSTANTIATE_TEST_SUITE_P(, PlanRivalTest, testing::Values(20, 30, 40));

// As with a `with` block around some steps.
TEST_F(PlansTest, APlanIsKnownWhenItsBudgetComesBack) {
  plans->open();
  for (int i = 0; i < 4; ++i) {
    iterate(8);
    answer();
  }
  EXPECT_FALSE(policy.is_following()); // the plan says so
  EXPECT_EQ(policy.plan_census().kind, 1u);
  int requests = 0;
  for (int i = 0; i < 20; ++i) {
    iterate(8, i % 2 == 0 ? kBudget / 2 : kBudget);
    requests += answer() ? 1 : 0;
  }
  EXPECT_EQ(requests, 1); // for the other budget
  const PlanCensus census = policy.plan_census();
  EXPECT_EQ(census.kind, 1u);
  EXPECT_EQ(census.kinds, 1u);
  EXPECT_EQ(census.tried, 10u);
  EXPECT_EQ(census.adopted, 2u);
  EXPECT_GT(census.memory, 2 * kLength * sizeof(Future::Op));
  iterate(16);
  EXPECT_EQ(policy.plan_census().kind, 0u); // it is no longer that kind
}

TEST_F(PlansTest, LogsEverLessWhereNothingRepeats) {
  plans->open();
  int logs = 0;
  for (int i = 0; i < 200; ++i) {
    iterate(8 + i);
    logs += policy.program_log() != nullptr;
  }
  EXPECT_LT(logs, 30);
  EXPECT_GT(logs, 5);
}

TEST(ProgramLogTest, WhatIsTooLongIsDropped) {
  ProgramLog log;
  TraceEvent event;
  event.kind = TraceEvent::Kind::Op;
  event.inputs.assign(1000, 1);
  size_t events = 0;
  for (; log.is_complete(); ++events) {
    log.add(event);
  }
  EXPECT_LT(events * 8000, ProgramLog::kMostBytes + 8000);
  EXPECT_TRUE(log.take().empty());
  EXPECT_TRUE(log.is_complete()); // anew
}

TEST(ProgramLogTest, NamesWhatWasThereBefore) {
  OpGraph graph;
  const VersionId leaf = graph.add_version(8, nullptr, 0);
  const VersionId other = graph.add_version(16, nullptr, 0);
  for (const VersionId id : {leaf, other}) {
    graph.own(id);
    graph[id].resident = true;
  }
  ProgramLog log;
  TraceEvent access;
  access.kind = TraceEvent::Kind::Access;
  access.id = graph[leaf].created;
  log.mention(graph, leaf);
  log.add(access);
  log.add_leaves(graph);
  TraceEvent unknown;
  unknown.kind = TraceEvent::Kind::Death;
  unknown.id = 77;
  log.add(unknown);
  const auto events = log.take();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].size, 8u);
  EXPECT_EQ(events[1].size, 16u);
  EXPECT_EQ(events[2], access);
}

} // namespace
} // namespace c10::remat
