#include <c10/remat/policy/VictimIndex.h>

#include "PolicyBench.h"

#include <c10/remat/policy/LargestPolicy.h>
#include <c10/remat/policy/LruPolicy.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace c10::remat {
namespace {

// Weights, locks and their changes as the test sets them.
class SetPolicy : public EvictionPolicy {
 public:
  const char* name() const override {
    return "set";
  }
  double weight(const OpGraph&, VersionId id) const override {
    ++asked;
    return weights.at(id.index);
  }
  bool is_locked(const OpGraph&, VersionId id) const override {
    return locked.count(id.index) != 0;
  }
  uint64_t lock_epoch() const override {
    return epoch;
  }
  void drain_lowered(const OpGraph&, std::vector<VersionId>& to) override {
    to.insert(to.end(), lowered.begin(), lowered.end());
    lowered.clear();
  }

  std::map<uint32_t, double> weights;
  std::set<uint32_t> locked;
  uint64_t epoch = 0;
  std::vector<VersionId> lowered;
  mutable size_t asked = 0;
};

struct SetBench : SetPolicy, PolicyBench {
  SetBench() : PolicyBench(static_cast<SetPolicy&>(*this)) {}

  VersionId add(double weight) {
    const VersionId id = op1(/*cost=*/10, {}, /*size=*/1);
    weights[id.index] = weight;
    return id;
  }
  VersionId choose() {
    return index.choose(now, /*allow_locked=*/false);
  }
};

TEST(VictimIndexTest, HasNoVictimInAnEmptyGraph) {
  SetBench bench;
  EXPECT_FALSE(bench.choose());
  EXPECT_FALSE(bench.index.choose(0, /*allow_locked=*/true));
}

TEST(VictimIndexTest, ChoosesTheStalestOfEqualWeights) {
  SetBench bench;
  const VersionId first = bench.add(3);
  const VersionId second = bench.add(3);
  EXPECT_EQ(bench.choose(), first);
  bench.now += 10;
  bench.access(first);
  EXPECT_EQ(bench.choose(), second);
}

TEST(VictimIndexTest, BreaksTiesByCreation) {
  SetBench bench;
  const VersionId first = bench.add(3);
  const VersionId second = bench.add(3);
  bench.now += 10;
  bench.access(second);
  bench.access(first);
  EXPECT_EQ(bench.choose(), first);
}

TEST(VictimIndexTest, ComparesBucketsByExactScore) {
  SetBench bench;
  const VersionId stale = bench.add(100); // at 10
  const VersionId light = bench.add(1); // at 20
  bench.now = 29; // 100 / 20 against 1 / 10
  EXPECT_EQ(bench.choose(), light);
  bench.access(light);
  bench.now = 30; // 100 / 21 against 1 / 2
  EXPECT_EQ(bench.choose(), light);
  bench.weights[light.index] = 10; // 4.76 against 5
  EXPECT_EQ(bench.choose(), stale);
}

TEST(VictimIndexTest, MovesAHeadWhoseWeightGrew) {
  SetBench bench;
  const VersionId grown = bench.add(1);
  const VersionId other = bench.add(2);
  EXPECT_EQ(bench.choose(), grown);
  bench.weights[grown.index] = 1000;
  EXPECT_EQ(bench.choose(), other);
  bench.index.check_invariants();
}

TEST(VictimIndexTest, HearsOfWeightsThatFell) {
  SetBench bench;
  bench.add(10);
  const VersionId fallen = bench.add(1000);
  for (int i = 0; i < 100; ++i) {
    bench.add(1000);
  }
  bench.choose();
  bench.weights[fallen.index] = 0.001;
  bench.lowered.push_back(fallen);
  EXPECT_EQ(bench.choose(), fallen);
}

TEST(VictimIndexTest, FindsUnreportedFallsInTurn) {
  SetBench bench;
  bench.add(10);
  VersionId fallen;
  for (int i = 0; i < 100; ++i) {
    fallen = bench.add(1000);
  }
  bench.choose();
  bench.weights[fallen.index] = 0.001;
  for (int i = 0; i < 64; ++i) { // slots are at most doubled, four a choice
    bench.choose();
  }
  EXPECT_EQ(bench.choose(), fallen);
}

TEST(VictimIndexTest, PassesOverPinnedVersions) {
  SetBench bench;
  const VersionId pinned = bench.add(1);
  const VersionId user_pinned = bench.add(1);
  const VersionId other = bench.add(1);
  bench.graph[pinned].pins = 1;
  bench.graph[user_pinned].user_pins = 1;
  EXPECT_EQ(bench.choose(), other);
  bench.graph[pinned].pins = 0;
  EXPECT_EQ(bench.choose(), pinned);
}

TEST(VictimIndexTest, LeavesReservedVersionsToTheEvictor) {
  SetBench bench;
  const VersionId reserved = bench.add(1);
  bench.graph[reserved].reservations = 1;
  EXPECT_FALSE(bench.choose());
  EXPECT_FALSE(bench.index.choose(bench.now, /*allow_locked=*/true));
}

TEST(VictimIndexTest, TakesLockedVersionsOnlyReluctantly) {
  SetBench bench;
  const VersionId locked = bench.add(1);
  const VersionId other = bench.add(1);
  bench.locked.insert(locked.index);
  EXPECT_EQ(bench.choose(), other);
  bench.index.check_invariants();
  EXPECT_EQ(bench.index.choose(bench.now, true), locked);
  bench.choose(); // sets it apart again
  bench.locked.clear();
  ++bench.epoch;
  EXPECT_EQ(bench.choose(), locked);
}

TEST(VictimIndexTest, ForgetsWhatIsNotEvictableAnyMore) {
  SetBench bench;
  const VersionId evicted = bench.add(1);
  const VersionId dead = bench.add(1);
  const VersionId leaf = bench.add(1);
  const VersionId escaped = bench.add(1);
  EXPECT_EQ(bench.index.size(), 4U);
  bench.evict(evicted);
  bench.kill(dead);
  bench.make_leaf(leaf);
  bench.graph[escaped].escaped = true;
  bench.index.refresh(escaped);
  EXPECT_EQ(bench.index.size(), 0U);
  EXPECT_FALSE(bench.choose());
  bench.rematerialize(evicted);
  EXPECT_EQ(bench.choose(), evicted);
}

TEST(VictimIndexTest, AsksForNoWeightUntilAChoice) {
  SetBench bench;
  for (int i = 0; i < 1000; ++i) {
    bench.kill(bench.add(1));
  }
  EXPECT_EQ(bench.asked, 0U);
}

TEST(VictimIndexTest, LooksAtFewVersionsPerChoice) {
  SetBench bench;
  for (int i = 0; i < 10000; ++i) {
    bench.add(1 + i % 16);
  }
  bench.choose();
  bench.asked = 0;
  bench.choose();
  EXPECT_LE(bench.asked, 24U); // one per bucket, and the sweep
}

TEST(VictimIndexTest, OrdersByExactWeightWithoutStaleness) {
  LargestPolicy policy;
  PolicyBench bench(policy);
  bench.op1(10, {}, 1000);
  const VersionId largest = bench.op1(10, {}, 1002);
  bench.op1(10, {}, 1001);
  EXPECT_EQ(bench.index.choose(bench.now, false), largest);
}

// Scores that grow with time, each at a pace of its own: see Note [Scores that
// change with every op].
struct GrowingPolicy : SetPolicy {
  bool ranks_anew() const override {
    return is_on;
  }
  double weight(const OpGraph& graph, VersionId id) const override {
    ++asked;
    const double until = weights.at(id.index) - static_cast<double>(now);
    return 1 / std::max(until, 1.0) / static_cast<double>(graph[id].size);
  }
  bool is_on = true;
  Ticks now = 0;
};

TEST(VictimIndexTest, RanksByScoresThatGrow) {
  GrowingPolicy policy;
  PolicyBench bench(policy);
  std::mt19937 random(3);
  std::vector<VersionId> versions;
  for (int i = 0; i < 500; ++i) {
    versions.push_back(bench.op1(1, {}, 1 + random() % 64));
    policy.weights[versions.back().index] = 500.0 + random() % 100000;
  }
  size_t asked = 0;
  for (int i = 0; i < 400; ++i) {
    policy.now += 100;
    // Read: its next need is later.
    const VersionId read = versions[random() % versions.size()];
    if (bench.graph[read].resident) {
      policy.weights[read.index] = policy.now + 90000.0;
      policy.lowered.push_back(read);
    }
    policy.is_on = i % 50 != 49; // and back
    policy.asked = 0;
    const VersionId chosen = bench.index.choose(bench.now, true);
    if (policy.is_on) {
      asked += i % 50 == 0 ? 0 : policy.asked;
      EXPECT_EQ(chosen, bench.index.choose_exact(bench.now, true));
    }
    bench.evict(chosen);
    bench.index.check_invariants();
  }
  EXPECT_LT(asked, 400u * 40); // of 500 each
}

} // namespace
} // namespace c10::remat
