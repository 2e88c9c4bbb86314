#include <c10/remat/policy/NeighborhoodEstimate.h>

#include "PolicyBench.h"

#include <gtest/gtest.h>

#include <random>

namespace c10::remat {
namespace {

// Hands each change on to an estimate.
struct EstimatingPolicy : EvictionPolicy {
  const char* name() const override {
    return "estimating";
  }
  double weight(const OpGraph&, VersionId) const override {
    return 1;
  }
  void on_captured(const OpGraph& graph, OpId op) override {
    estimate.on_captured(graph, op);
  }
  void on_evicted(const OpGraph& graph, VersionId id) override {
    estimate.on_evicted(graph, id);
  }
  void on_rematerialized(const OpGraph& graph, VersionId id) override {
    estimate.on_rematerialized(graph, id);
  }
  void on_op_forgotten(const OpGraph& graph, OpId op, const OpRecord& record)
      override {
    estimate.on_op_forgotten(graph, op, record.sequence);
  }
  void on_output_forgotten(const OpGraph& graph, OpId op) override {
    estimate.on_output_forgotten(graph, op);
  }

  NeighborhoodEstimate estimate;
};

struct EstimateBench : EstimatingPolicy, PolicyBench {
  EstimateBench() : PolicyBench(static_cast<EstimatingPolicy&>(*this)) {}

  // A chain of `length` ops of cost 1.
  std::vector<VersionId> chain(size_t length) {
    std::vector<VersionId> made;
    VersionId last = leaf(1);
    for (size_t i = 0; i < length; ++i) {
      made.push_back(last = op1(1, {last}, 1));
    }
    return made;
  }
};

TEST(NeighborhoodEstimateTest, CountsASetOnceThroughSeveralLinks) {
  EstimateBench bench;
  const VersionId x = bench.op1(5, {}, 1);
  const VersionId left = bench.op1(10, {x}, 1);
  const VersionId right = bench.op1(20, {x}, 1);
  const VersionId end = bench.op1(100, {left, right}, 1);
  for (const VersionId id : {x, left, right}) {
    bench.evict(id);
  }
  EXPECT_EQ(bench.estimate.cost(bench.graph, end), 100 + 5 + 10 + 20);
}

TEST(NeighborhoodEstimateTest, TakesOutWhatIsReplayed) {
  EstimateBench bench;
  const auto chain = bench.chain(11);
  for (int i = 0; i < 10; ++i) {
    bench.evict(chain[i]);
  }
  EXPECT_EQ(bench.estimate.cost(bench.graph, chain[10]), 11);
  bench.rematerialize(chain[5]);
  // 6 .. 9 and itself would be exact; 0 .. 4 are still in the set.
  EXPECT_EQ(bench.estimate.cost(bench.graph, chain[10]), 10);
  bench.estimate.check_invariants();
}

TEST(NeighborhoodEstimateTest, IsExactAgainAfterEnoughDepartures) {
  EstimateBench bench;
  const auto chain = bench.chain(11);
  for (int i = 0; i < 10; ++i) {
    bench.evict(chain[i]);
  }
  bench.rematerialize(chain[5]);
  const VersionId other = bench.op1(1, {}, 1);
  for (size_t i = 0; i < NeighborhoodEstimate::kRebuildAfter; ++i) {
    bench.evict(other);
    bench.rematerialize(other);
  }
  EXPECT_EQ(bench.estimate.cost(bench.graph, chain[10]), 5);
}

TEST(NeighborhoodEstimateTest, HoldsNoMoreThanIsAbsent) {
  EstimateBench bench;
  for (int round = 0; round < 100; ++round) {
    auto chain = bench.chain(100);
    for (const VersionId id : chain) {
      bench.evict(id);
    }
    for (const VersionId id : chain) {
      bench.rematerialize(id);
    }
    while (!chain.empty()) {
      bench.kill(chain.back());
      chain.pop_back();
    }
  }
  EXPECT_LE(
      bench.estimate.element_count(),
      2 * (100 + NeighborhoodEstimate::kRebuildAfter));
}

TEST(NeighborhoodEstimateTest, KeepsItsSumsInARandomRun) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EstimateBench bench;
    std::mt19937 random(seed);
    std::vector<VersionId> made{bench.leaf(1)};
    for (int i = 0; i < 1000; ++i) {
      const VersionId id = made[random() % made.size()];
      const StorageVersion& version = bench.graph[id];
      if (random() % 3 == 0) {
        const auto outputs = bench.op(1 + random() % 9, {id}, {1, 1});
        made.insert(made.end(), outputs.begin(), outputs.end());
      } else if (random() % 4 == 0 && made.size() > 20 && version.producer) {
        bench.kill(id);
        made.erase(std::find(made.begin(), made.end(), id));
      } else if (!version.resident) {
        bench.rematerialize(id);
      } else if (version.producer) {
        bench.evict(id);
      }
      ASSERT_NO_THROW(bench.estimate.check_invariants()) << "seed " << seed;
    }
  }
}

} // namespace
} // namespace c10::remat
