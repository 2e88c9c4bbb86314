#include <c10/remat/graph/OpGraph.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace c10::remat {
namespace {

VersionId owned_version(OpGraph& graph) {
  const VersionId id = graph.add_version(1, nullptr, 0);
  graph.own(id);
  graph[id].resident = true;
  return id;
}

std::vector<VersionId> add_op(
    OpGraph& graph,
    std::vector<VersionId> inputs,
    size_t outputs) {
  OpRecord record;
  record.inputs = std::move(inputs);
  for (size_t i = 0; i < outputs; ++i) {
    record.outputs.push_back(owned_version(graph));
  }
  const std::vector<VersionId> made = record.outputs;
  graph.add_op(std::move(record));
  return made;
}

// The owner goes; returns what was forgotten.
size_t drop(OpGraph& graph, VersionId id) {
  Garbage garbage;
  graph.disown(id);
  graph.collect(id, garbage);
  for (const VersionId version : garbage.versions) {
    graph.free_slot(version);
  }
  return garbage.versions.size();
}

TEST(OpGraphTest, KeepsAHistoryForAsLongAsItsEndIsOwned) {
  OpGraph graph;
  std::vector<VersionId> chain{owned_version(graph)};
  for (int i = 0; i < 10; ++i) {
    chain.push_back(add_op(graph, {chain.back()}, 1)[0]);
  }
  for (size_t i = 0; i + 1 < chain.size(); ++i) {
    EXPECT_EQ(drop(graph, chain[i]), 0U);
  }
  EXPECT_EQ(drop(graph, chain.back()), 11U);
  EXPECT_EQ(graph.version_count(), 0U);
  EXPECT_EQ(graph.op_count(), 0U);
}

TEST(OpGraphTest, ForgetsLongHistoriesWithoutRecursion) {
  OpGraph graph;
  VersionId last = owned_version(graph);
  for (int i = 0; i < 100000; ++i) {
    const VersionId next = add_op(graph, {last}, 1)[0];
    drop(graph, last);
    last = next;
  }
  EXPECT_EQ(drop(graph, last), 100001U);
}

TEST(OpGraphTest, KeepsARecordForAnyOfItsOutputs) {
  OpGraph graph;
  const VersionId leaf = owned_version(graph);
  const auto parts = add_op(graph, {leaf}, 2);
  drop(graph, leaf);
  EXPECT_EQ(drop(graph, parts[0]), 1U);
  EXPECT_EQ(graph.op_count(), 1U);
  EXPECT_EQ(drop(graph, parts[1]), 2U);
  EXPECT_EQ(graph.op_count(), 0U);
}

TEST(OpGraphTest, MakesALeafOfOneOutputAndKeepsTheOther) {
  OpGraph graph;
  const auto parts = add_op(graph, {owned_version(graph)}, 2);
  Garbage garbage;
  graph.make_leaf(parts[0], garbage);
  EXPECT_TRUE(graph.is_leaf(parts[0]));
  EXPECT_FALSE(graph.is_leaf(parts[1]));
  graph.check_invariants();
}

TEST(OpGraphTest, KeepsPinnedAndReservedVersions) {
  OpGraph graph;
  const VersionId pinned = owned_version(graph);
  graph[pinned].pins = 1;
  EXPECT_EQ(drop(graph, pinned), 0U);
  graph[pinned].pins = 0;
  graph[pinned].reservations = 1;
  EXPECT_EQ(drop(graph, pinned), 0U);
  graph[pinned].reservations = 0;
  EXPECT_EQ(drop(graph, pinned), 1U);
}

TEST(OpGraphTest, NumbersVersionsAndRecordsInOneOrder) {
  OpGraph graph;
  const VersionId first = owned_version(graph);
  const VersionId second = add_op(graph, {first}, 1)[0];
  EXPECT_LT(graph[first].created, graph[second].created);
  EXPECT_LT(graph[second].created, graph[graph[second].producer].sequence);
}

// A naive model: what is owned, and each record as it was captured. Live is
// what is owned, or read by a record that has a live output of its own.
class NaiveModel {
 public:
  struct Op {
    std::set<uint64_t> inputs;
    std::set<uint64_t> outputs; // but those that became leaves
  };

  std::set<uint64_t> live() const {
    std::set<uint64_t> found = owned;
    for (bool again = true; again;) {
      again = false;
      for (const Op& op : ops) {
        const bool is_live = std::any_of(
            op.outputs.begin(), op.outputs.end(), [&](uint64_t output) {
              return found.count(output) != 0;
            });
        if (is_live) {
          for (const uint64_t input : op.inputs) {
            again |= found.insert(input).second;
          }
        }
      }
    }
    return found;
  }

  std::set<uint64_t> owned; // by StorageVersion::created
  std::vector<Op> ops;
};

struct Command {
  enum Kind { Leaf, Op, Drop, MakeLeaf, kKinds };
  Kind kind;
  uint32_t seed;
};

TEST(OpGraphTest, AgreesWithANaiveModelInRandomRuns) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 commands(seed);
    OpGraph graph;
    NaiveModel model;
    std::vector<VersionId> owned;
    for (int step = 0; step < 200; ++step) {
      const Command command{
          static_cast<Command::Kind>(commands() % Command::kKinds),
          static_cast<uint32_t>(commands())};
      std::mt19937 random(command.seed);
      const auto any = [&] { return owned[random() % owned.size()]; };
      if (owned.size() < 4 || command.kind == Command::Leaf) {
        owned.push_back(owned_version(graph));
        model.owned.insert(graph[owned.back()].created);
      } else if (command.kind == Command::Op) {
        std::set<VersionId> inputs{any(), any()};
        NaiveModel::Op op;
        for (const VersionId input : inputs) {
          op.inputs.insert(graph[input].created);
        }
        for (const VersionId output :
             add_op(graph, {inputs.begin(), inputs.end()}, 1 + random() % 3)) {
          owned.push_back(output);
          op.outputs.insert(graph[output].created);
          model.owned.insert(graph[output].created);
        }
        model.ops.push_back(op);
      } else if (command.kind == Command::Drop) {
        const VersionId id = any();
        model.owned.erase(graph[id].created);
        owned.erase(std::find(owned.begin(), owned.end(), id));
        drop(graph, id);
      } else {
        const VersionId id = any();
        for (auto& op : model.ops) {
          op.outputs.erase(graph[id].created);
        }
        Garbage garbage;
        graph.make_leaf(id, garbage);
        for (const VersionId version : garbage.versions) {
          graph.free_slot(version);
        }
      }
      ASSERT_NO_THROW(graph.check_invariants())
          << "seed " << seed << ", step " << step;
      std::set<uint64_t> live;
      graph.for_each_version(
          [&](VersionId id) { live.insert(graph[id].created); });
      ASSERT_EQ(live, model.live()) << "seed " << seed << ", step " << step;
    }
  }
}

} // namespace
} // namespace c10::remat
