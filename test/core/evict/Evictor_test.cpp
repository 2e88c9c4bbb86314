#include "../SimProgram.h"

#include <gtest/gtest.h>

namespace c10::remat {
namespace {

using Var = SimProgram::Var;

// What a program holds, as blocks of one segment in the order in which it was
// allocated.
std::vector<BlockView> blocks_of(const SimDevice& device) {
  std::vector<BlockView> blocks;
  for (const auto& holder : device.holders) {
    blocks.push_back(
        {holder.get(),
         holder->size,
         holder.get(),
         /*free=*/!holder->value,
         /*slides=*/true});
  }
  return blocks;
}

// A device whose storages lie side by side.
constexpr uintptr_t kAddress = 1000;

struct OneSegment {
  explicit OneSegment(SimProgram& program, bool takes_moves = true)
      : program(program) {
    program.device.list_segments = [this, takes_moves](const MemoryRequest&) {
      SegmentView segment;
      segment.blocks = blocks_of(this->program.device);
      segment.serves_request = true;
      segment.address = kAddress;
      segment.takes_moves = takes_moves;
      return std::vector<SegmentView>{segment};
    };
  }
  SimProgram& program;
};

// That no free block serves, with nothing left of the budget.
MemoryRequest request_of(Bytes size) {
  MemoryRequest request;
  request.size = size;
  request.shortage = size;
  return request;
}

TEST(EvictorTest, FreesNeighborsForARequestThatNoBlockServes) {
  SimProgram program(/*capacity=*/1 << 20);
  const Var leaf = program.leaf(1);
  std::vector<Var> made;
  for (int i = 0; i < 8; ++i) {
    made.push_back(program.op1({leaf}, 100));
  }
  const OneSegment segment(program);
  const MemoryRequest request = request_of(300);
  EXPECT_EQ(program.engine.relieve_request(request), 300U);
  const auto counters = program.engine.counters();
  EXPECT_EQ(counters.evictions, 3U);
  EXPECT_EQ(counters.fragmentation_evictions, 0U); // nothing was free
  // Three in a row.
  const auto blocks = blocks_of(program.device);
  size_t first = 0;
  while (!blocks[first].free) {
    ++first;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].free, i >= first && i < first + 3) << i;
  }
  for (const Var var : made) {
    EXPECT_TRUE(program.holds_expected(var));
  }
  program.check_invariants();
}

// Eight values of 100 bytes; the third, fifth and seventh are free.
std::vector<Var> values_with_holes(SimProgram& program) {
  const Var leaf = program.leaf(1);
  std::vector<Var> made;
  for (int i = 0; i < 8; ++i) {
    made.push_back(program.op1({leaf}, 100, /*cost=*/1000));
  }
  for (const int i : {2, 4, 6}) {
    program.evict(made[i]);
  }
  return made;
}

TEST(EvictorTest, MovesWhatIsCheaperToCopyThanToMakeAgain) {
  SimProgram program(/*capacity=*/1 << 20);
  const auto made = values_with_holes(program);
  const OneSegment segment(program);
  program.device.copy_ns = 10;
  std::vector<const void*> moved;
  program.device.move_bytes =
      [&](const void* block, const auto& avoided, Placement) {
        moved.push_back(block);
        EXPECT_EQ(avoided.size(), 1u);
        EXPECT_EQ(avoided[0].end - avoided[0].begin, 200u);
        EXPECT_GE(avoided[0].begin, kAddress);
        return true;
      };
  const uint64_t evictions = program.engine.counters().evictions;
  const MemoryRequest request = request_of(200);
  EXPECT_EQ(program.engine.relieve_request(request), 100U);
  EXPECT_EQ(moved.size(), 1u);
  EXPECT_EQ(program.engine.counters().moves, 1u);
  EXPECT_EQ(program.engine.counters().moved_bytes, 100u);
  EXPECT_EQ(program.engine.counters().evictions, evictions);
  for (const Var var : made) {
    EXPECT_TRUE(program.holds_expected(var));
  }
  program.check_invariants();
}

TEST(EvictorTest, EvictsWhereCopyingTakesLongerOrFindsNoRoom) {
  for (const CostNs copy_ns : {10, 1000}) {
    SimProgram program(/*capacity=*/1 << 20);
    values_with_holes(program);
    const OneSegment segment(program);
    program.device.copy_ns = copy_ns;
    int tried = 0;
    program.device.move_bytes = [&](const void*, const auto&, Placement) {
      ++tried;
      return false;
    };
    const uint64_t evictions = program.engine.counters().evictions;
    const MemoryRequest request = request_of(200);
    EXPECT_EQ(program.engine.relieve_request(request), 100U);
    EXPECT_EQ(tried, copy_ns == 10 ? 1 : 0);
    EXPECT_EQ(program.engine.counters().moves, 0u);
    EXPECT_EQ(program.engine.counters().evictions, evictions + 1);
    program.check_invariants();
  }
}

// Is going to evict what is dear to make.
class LettingGo final : public EvictionPolicy {
 public:
  static constexpr CostNs kDear = 1 << 30;

  const char* name() const override {
    return "letting_go";
  }
  double weight(const OpGraph& graph, VersionId id) const override {
    return static_cast<double>(graph[graph[id].producer].cost);
  }
  bool lets_go(const OpGraph& graph, VersionId id) const override {
    return graph[graph[id].producer].cost == kDear;
  }
};

TEST(EvictorTest, WhatIsLetGoOfAnywayGoesFirstAndIsNotMoved) {
  SimProgram program(/*capacity=*/1 << 20, std::make_unique<LettingGo>());
  const Var leaf = program.leaf(1);
  std::vector<Var> made;
  for (int i = 0; i < 8; ++i) {
    const bool is_dear = i == 5 || i == 6;
    made.push_back(program.op1({leaf}, 100, is_dear ? LettingGo::kDear : 10));
  }
  program.evict(made[1]); // where they could be moved
  const OneSegment segment(program);
  program.device.copy_ns = 1;
  program.device.move_bytes = [&](const void*, const auto&, Placement) {
    ADD_FAILURE();
    return true;
  };
  const uint64_t evictions = program.engine.counters().evictions;
  EXPECT_EQ(program.engine.relieve_request(request_of(200)), 200U);
  EXPECT_EQ(program.engine.counters().evictions, evictions + 2);
  for (const auto& [i, free] :
       {std::pair<int, bool>{4, false}, {5, true}, {6, true}, {7, false}}) {
    // The leaf is the first block.
    EXPECT_EQ(blocks_of(program.device)[i + 1].free, free) << i;
  }
}

TEST(EvictorTest, CallsFreeBytesUnusableThatTheRequestDoesNotTake) {
  struct Case {
    std::vector<int> holes;
    Bytes request;
    Bytes unusable;
  };
  for (const Case& each :
       {Case{{2, 3, 4}, 400, 0}, Case{{2, 4, 6}, 300, 100}}) {
    SimProgram program(/*capacity=*/1 << 20);
    const Var leaf = program.leaf(1);
    std::vector<Var> made;
    for (int i = 0; i < 8; ++i) {
      made.push_back(program.op1({leaf}, 100));
    }
    for (const int i : each.holes) {
      program.evict(made[i]);
    }
    const OneSegment segment(program);
    program.device.copy_ns = 1000000; // nothing slides
    MemoryRequest request = request_of(each.request);
    request.reserved = 801;
    request.unused = 300;
    EXPECT_EQ(program.engine.relieve_request(request), 100U);
    const auto counters = program.engine.counters();
    EXPECT_EQ(counters.reserved_at_requests, 801U);
    EXPECT_EQ(counters.unusable_at_requests, each.unusable);
  }
}

TEST(EvictorTest, CoopEvictsNeighborsAndMovesNothing) {
  Config config;
  config.policy = "coop";
  SimProgram program(/*capacity=*/1 << 20, config);
  const auto made = values_with_holes(program);
  const OneSegment segment(program);
  program.device.copy_ns = 10;
  program.device.move_bytes = [&](const void*, const auto&, Placement) {
    ADD_FAILURE();
    return true;
  };
  program.device.slide_bytes = [&](const void*) {
    ADD_FAILURE();
    return true;
  };
  const uint64_t evictions = program.engine.counters().evictions;
  const MemoryRequest request = request_of(200);
  EXPECT_EQ(program.engine.relieve_request(request), 100U);
  EXPECT_EQ(program.engine.counters().evictions, evictions + 1);
  for (const Var var : made) {
    EXPECT_TRUE(program.holds_expected(var));
  }
}

// Where blocks could have been copied, evicting them was less work.
TEST(EvictorTest, CountsWhatIsEvictedForWantOfNeighbors) {
  for (const bool serves : {true, false}) {
    for (const bool slides : {true, false}) {
      SimProgram program(/*capacity=*/1 << 20);
      values_with_holes(program); // three of 100
      program.device.list_segments = [&](const MemoryRequest&) {
        std::vector<SegmentView> segments(2);
        segments[0].blocks = blocks_of(program.device);
        for (BlockView& block : segments[0].blocks) {
          block.slides = slides;
        }
        segments[0].serves_request = serves;
        segments[1].releasable = true;
        return segments;
      };
      for (const Bytes size : {200, 500}) {
        const auto before = program.engine.counters();
        const MemoryRequest request = request_of(size);
        EXPECT_GT(program.engine.relieve_request(request), 0U);
        const auto after = program.engine.counters();
        const uint64_t evicted = after.evictions - before.evictions;
        EXPECT_GT(evicted, 0u);
        EXPECT_EQ(
            after.fragmentation_evictions - before.fragmentation_evictions,
            serves && !slides && size == 200 ? evicted : 0);
      }
    }
  }
}

// A new leaf between two gaps, values that are dear to make on both sides.
struct LeafBetweenGaps {
  explicit LeafBetweenGaps(bool is_new) {
    const Var seed = program.leaf(1);
    std::vector<Var> made;
    for (int i = 0; i < 4; ++i) {
      made.push_back(program.op1({seed}, 100, /*cost=*/1000));
    }
    leaf = program.leaf(100, is_new);
    for (int i = 0; i < 4; ++i) {
      made.push_back(program.op1({seed}, 100, /*cost=*/1000));
    }
    for (const int i : {2, 3, 4}) {
      program.evict(made[i]);
    }
    evictions = program.engine.counters().evictions;
    program.device.copy_ns = 10;
    program.device.slide_bytes = [this](const void* block) {
      slid.push_back(block);
      return true;
    };
  }

  uint64_t evicted() const {
    return program.engine.counters().evictions - evictions;
  }

  SimProgram program{/*capacity=*/1 << 20};
  Var leaf;
  uint64_t evictions = 0;
  std::vector<const void*> slid;
  const MemoryRequest request = request_of(300);
};

TEST(EvictorTest, SlidesUntilTheGapsLieTogether) {
  LeafBetweenGaps gaps(/*is_new=*/true);
  const OneSegment segment(gaps.program, /*takes_moves=*/false);
  EXPECT_GT(gaps.program.engine.relieve_request(gaps.request), 0U);
  EXPECT_EQ(gaps.slid.size(), 1u);
  EXPECT_EQ(gaps.program.engine.counters().moves, 1u);
  EXPECT_EQ(gaps.evicted(), 0u);
  gaps.program.check_invariants();
}

TEST(EvictorTest, WhatOthersMayKnowTheAddressOfDoesNotSlide) {
  LeafBetweenGaps unseen(/*is_new=*/false);
  LeafBetweenGaps escaped(/*is_new=*/true);
  escaped.program.escape(escaped.leaf, /*for_good=*/true);
  LeafBetweenGaps pinned(/*is_new=*/true);
  pinned.program.engine.pin_by_user(pinned.program.id(pinned.leaf));
  for (LeafBetweenGaps* gaps : {&unseen, &escaped, &pinned}) {
    const OneSegment segment(gaps->program, /*takes_moves=*/false);
    EXPECT_GT(gaps->program.engine.relieve_request(gaps->request), 0U);
    EXPECT_TRUE(gaps->slid.empty());
    EXPECT_GT(gaps->evicted(), 0u);
    gaps->program.check_invariants();
  }
}

// State that an optimizer keeps, between gradients and values that are gone.
struct Settling {
  explicit Settling(Config config = {}) : program(1 << 20, config) {
    for (int i = 0; i < 2; ++i) {
      gone.push_back(program.op1({parameter}, 100));
      program.leaf(100, /*is_gradient=*/true);
      gone.push_back(program.op1({parameter}, 10));
      states.push_back(program.op1({parameter}, 100));
    }
    program.device.slide_bytes = [this](const void* block) {
      slid.push_back(static_cast<const SimHolder*>(block)->size);
      return true;
    };
    update();
  }

  void update() {
    SimProgram::OpSpec spec;
    spec.updates = {parameter};
    program.op(spec);
    for (const Var state : states) {
      program.write(state); // which makes it a leaf
    }
  }
  // Returns the sizes of what slides when the next iteration begins.
  std::vector<Bytes> iterate(bool is_short) {
    for (int i = 0; i < 16; ++i) {
      program.drop(program.op1({parameter}, 1, /*cost=*/100));
    }
    if (is_short) {
      program.engine.relieve_request(request_of(5));
    }
    update();
    for (const Var var : gone) {
      program.evict(var);
    }
    slid.clear();
    program.drop(program.op1({parameter}, 1, /*cost=*/100));
    return slid;
  }

  SimProgram program;
  const Var parameter = program.leaf(1);
  const OneSegment segment{program};
  std::vector<Var> gone;
  std::vector<Var> states;
  std::vector<Bytes> slid;
};

TEST(EvictorTest, StateSettlesWhenAnIterationBeginsAndMemoryWasShort) {
  Settling settling;
  settling.program.device.copy_ns = 1;
  EXPECT_TRUE(settling.iterate(/*is_short=*/false).empty());
  // Not the gradients between them.
  const std::vector<Bytes> both{100, 100};
  EXPECT_EQ(settling.iterate(/*is_short=*/true), both);
  settling.program.op1({settling.parameter}, 1);
  EXPECT_EQ(settling.slid, both);
  settling.program.check_invariants();
}

TEST(EvictorTest, NothingSettlesWherePlacementIsUpstreams) {
  Config upstream;
  upstream.windows = false;
  Config coop;
  coop.policy = "coop";
  for (const Config& config : {upstream, coop}) {
    Settling settling(config);
    settling.program.device.copy_ns = 1;
    EXPECT_TRUE(settling.iterate(/*is_short=*/true).empty());
  }
}

// As where gradients are freed in mid-iteration.
TEST(EvictorTest, GapsThatComeBackAreClosedEverMoreSeldom) {
  Settling settling;
  settling.program.device.copy_ns = 16; // two are a fiftieth of an iteration
  std::vector<int> at;
  for (int i = 0; i < 16; ++i) {
    if (!settling.iterate(/*is_short=*/true).empty()) {
      at.push_back(i);
    }
  }
  EXPECT_EQ(at.size(), 4u);
  for (size_t i = 2; i < at.size(); ++i) {
    EXPECT_GT(at[i] - at[i - 1], at[i - 1] - at[i - 2]);
  }
}

TEST(EvictorTest, MovesLeavesOutWhereNothingIsLeftToEvict) {
  for (const bool takes_moves : {true, false}) {
    SimProgram program(/*capacity=*/1 << 20);
    const Var old = program.leaf(100); // its address may be known
    for (int i = 0; i < 3; ++i) {
      program.leaf(100, /*is_new=*/true);
    }
    const Var made = program.op1({old}, 100, /*cost=*/1000);
    const OneSegment segment(program, takes_moves);
    program.device.copy_ns = 10;
    std::vector<const void*> moved;
    program.device.move_bytes =
        [&](const void* block, const auto&, Placement placement) {
          EXPECT_EQ(placement, Placement::Leaf);
          moved.push_back(block);
          return moved.size() != 2; // no block for the second
        };
    const MemoryRequest request = request_of(150);
    EXPECT_EQ(program.engine.relieve_request(request), 100U); // evicted
    EXPECT_TRUE(moved.empty());
    EXPECT_EQ(program.engine.relieve_request(request), takes_moves ? 200U : 0U);
    const auto blocks = blocks_of(program.device);
    const std::vector<const void*> expected{
        blocks[1].key, blocks[2].key, blocks[3].key};
    EXPECT_EQ(moved, takes_moves ? expected : std::vector<const void*>{});
    EXPECT_EQ(program.engine.counters().moves, takes_moves ? 2U : 0U);
    EXPECT_TRUE(program.holds_expected(old));
    EXPECT_TRUE(program.holds_expected(made));
    program.check_invariants();
  }
}

TEST(EvictorTest, LeavesWhatIsPinnedAndWhatIsLeaf) {
  SimProgram program(/*capacity=*/1 << 20);
  std::vector<Var> made;
  for (int i = 0; i < 6; ++i) {
    const Var leaf = program.leaf(100); // between any two values
    made.push_back(program.op1({leaf}, 100));
  }
  const OneSegment segment(program);
  const MemoryRequest request = request_of(200);
  // No window: by score then, as many as are short.
  EXPECT_GE(program.engine.relieve_request(request), 200U);
  EXPECT_EQ(program.engine.counters().fragmentation_evictions, 0U);
  for (const Var var : made) {
    EXPECT_TRUE(program.holds_expected(var));
  }
  program.check_invariants();
}

TEST(EvictorTest, SaysThatNothingCanBeGivenBack) {
  SimProgram program(/*capacity=*/1 << 20);
  program.leaf(100);
  const OneSegment segment(program);
  const MemoryRequest request = request_of(50);
  EXPECT_EQ(program.engine.relieve_request(request), 0U);
}

} // namespace
} // namespace c10::remat
