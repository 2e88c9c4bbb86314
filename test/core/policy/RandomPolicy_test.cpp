#include "PolicyBench.h"

#include <c10/remat/policy/Neighborhood.h>
#include <c10/remat/policy/PolicyRegistry.h>
#include <c10/remat/policy/Staleness.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

namespace c10::remat {
namespace {

struct Command {
  enum Kind { Op, Evict, Rematerialize, Access, Kill, MakeLeaf, Pin, Reserve };
  Kind kind;
  uint32_t which;
};

constexpr int kKinds = 8;

// The neighborhood by its definition, recursively.
CostNs naive_cost(const OpGraph& graph, VersionId id, bool descendants) {
  std::set<uint32_t> ops{graph[id].producer.index};
  const std::function<void(VersionId)> up = [&](VersionId version) {
    for (const VersionId input : graph[graph[version].producer].inputs) {
      if (is_absent(graph[input])) {
        ops.insert(graph[input].producer.index);
        up(input);
      }
    }
  };
  const std::function<void(VersionId)> down = [&](VersionId version) {
    for (const OpId reader : graph[version].readers) {
      for (const VersionId output : graph[reader].outputs) {
        if (output && is_absent(graph[output])) {
          ops.insert(reader.index);
          down(output);
        }
      }
    }
  };
  up(id);
  if (descendants) {
    down(id);
  }
  CostNs total = 0;
  for (const uint32_t op : ops) {
    total += graph[OpId{op}].cost;
  }
  return total;
}

class RandomRun {
 public:
  RandomRun(const std::string& name, uint32_t seed)
      : name_(name),
        random_(seed),
        policy_(make_policy(name)),
        bench_(*policy_) {
    policy_->on_residual(1000, 100000);
  }

  void step() {
    apply(
        {static_cast<Command::Kind>(random_() % kKinds),
         static_cast<uint32_t>(random_())});
    bench_.graph.check_invariants();
    bench_.index.check_invariants();
    check_weights();
    if (random_() % 4 == 0) {
      check_choice();
    }
  }

 private:
  const OpGraph& graph() const {
    return bench_.graph;
  }

  // The owned versions that satisfy `wanted`.
  template <class Predicate>
  std::vector<VersionId> owned(Predicate wanted) const {
    std::vector<VersionId> found;
    graph().for_each_version([&](VersionId id) {
      if (graph()[id].owned && wanted(graph()[id])) {
        found.push_back(id);
      }
    });
    return found;
  }

  void apply(Command command) {
    const auto pick = [&](const std::vector<VersionId>& from) {
      return from.empty() ? VersionId{} : from[command.which % from.size()];
    };
    const auto resident =
        owned([](const auto& version) { return version.resident; });
    const auto evictable = owned([](const auto& version) {
      return version.resident && version.producer && version.pins == 0;
    });
    const auto evicted =
        owned([](const auto& version) { return !version.resident; });
    switch (command.kind) {
    case Command::Op: {
      std::set<VersionId> inputs;
      for (uint32_t i = 0; i < random_() % 4 && !resident.empty(); ++i) {
        inputs.insert(resident[random_() % resident.size()]);
      }
      std::vector<Bytes> sizes;
      for (uint32_t i = 0; i <= random_() % 3; ++i) {
        sizes.push_back(1 + random_() % 1000);
      }
      bench_.op(
          1 + random_() % 100,
          std::vector<VersionId>(inputs.begin(), inputs.end()),
          sizes);
      break;
    }
    case Command::Evict:
      if (const VersionId id = pick(evictable)) {
        bench_.evict(id);
      }
      break;
    case Command::Rematerialize:
      if (const VersionId id = pick(evicted)) {
        bench_.rematerialize(id);
      }
      break;
    case Command::Access:
      if (const VersionId id = pick(resident)) {
        bench_.access(id);
      }
      break;
    case Command::Kill:
      if (const VersionId id = pick(owned([](const auto& version) {
            return version.pins == 0 && version.reservations == 0;
          }));
          id && graph().version_count() > 30) {
        bench_.kill(id);
      }
      break;
    case Command::MakeLeaf:
      if (const VersionId id = pick(evictable); id && random_() % 8 == 0) {
        bench_.make_leaf(id);
      }
      break;
    case Command::Pin:
      if (const VersionId id = pick(resident)) {
        bench_.graph[id].pins ^= 1;
      }
      break;
    case Command::Reserve:
      if (const VersionId id = pick(resident)) {
        bench_.graph[id].reservations ^= 1;
      }
      break;
    }
  }

  void check_weights() const {
    if (name_ != "dtr" && name_ != "msps") {
      return;
    }
    graph().for_each_version([&](VersionId id) {
      const StorageVersion& version = graph()[id];
      if (!version.resident || !version.owned || !version.producer) {
        return;
      }
      const double expected =
          static_cast<double>(naive_cost(graph(), id, name_ == "dtr")) /
          static_cast<double>(version.size);
      ASSERT_EQ(policy_->weight(graph(), id), expected);
    });
  }

  void check_choice() {
    const bool reluctant = random_() % 2 == 0;
    const VersionId chosen = bench_.index.choose(bench_.now, reluctant);
    bench_.index.check_invariants();
    const VersionId best = bench_.index.choose_exact(bench_.now, reluctant);
    ASSERT_EQ(static_cast<bool>(chosen), static_cast<bool>(best));
    if (!chosen) {
      return;
    }
    ASSERT_TRUE(graph().is_evictable(chosen));
    if (name_ == "lru" || name_ == "largest" || name_ == "msps") {
      ASSERT_EQ(chosen, best);
    } else if (name_ != "coop" && name_ != "dtr_eq" && name_ != "dte") {
      // These leave some falls unreported.
      ASSERT_LE(
          score(chosen), score(best) * VictimIndex::kBucketRatio * (1 + 1e-9));
    }
  }

  double score(VersionId id) const {
    return policy_->weight(graph(), id) /
        staleness(graph()[id].last_access, bench_.now);
  }

  std::string name_;
  std::mt19937 random_;
  std::unique_ptr<EvictionPolicy> policy_;
  PolicyBench bench_;
};

class RandomPolicyTest : public testing::TestWithParam<std::string> {};

TEST_P(RandomPolicyTest, AgreesWithTheNaiveModel) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    RandomRun run(GetParam(), seed);
    for (int i = 0; i < 500; ++i) {
      ASSERT_NO_THROW(run.step());
      if (testing::Test::HasFatalFailure()) {
        FAIL() << "seed " << seed << ", step " << i;
      }
    }
  }
}

TEST_P(RandomPolicyTest, MakesTheSameChoicesAgain) {
  const auto choices = [&] {
    const auto policy = make_policy(GetParam());
    PolicyBench bench(*policy);
    std::mt19937 random(1);
    std::vector<VersionId> made{bench.leaf(1)};
    std::vector<uint32_t> chosen;
    for (int i = 0; i < 500; ++i) {
      const VersionId input = made[random() % made.size()];
      if (bench.graph[input].resident) {
        made.push_back(
            bench.op1(1 + random() % 50, {input}, 1 + random() % 50));
      }
      if (i % 3 == 0) {
        if (const VersionId id = bench.index.choose(bench.now, true)) {
          chosen.push_back(id.index);
          bench.evict(id);
        }
      }
    }
    return chosen;
  };
  EXPECT_EQ(choices(), choices());
}

INSTANTIATE_TEST_SUITE_P(
    All,
    RandomPolicyTest,
    testing::ValuesIn(policy_names()),
    [](const auto& info) { return info.param; });

} // namespace
} // namespace c10::remat
