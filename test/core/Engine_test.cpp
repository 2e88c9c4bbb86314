#include <c10/remat/Engine.h>

#include "SimProgram.h"

#include <c10/remat/Errors.h>
#include <gtest/gtest.h>

namespace c10::remat {
namespace {

using Var = SimProgram::Var;

constexpr Bytes kAmple = 1 << 30;

// A chain of ops behind a leaf.
std::vector<Var> chain(SimProgram& program, size_t length, Bytes size) {
  std::vector<Var> made;
  Var last = program.leaf(size);
  for (size_t i = 0; i < length; ++i) {
    made.push_back(last = program.op1({last}, size));
  }
  return made;
}

TEST(EngineTest, EvictsUnderPressureAndReplaysWhatIsRead) {
  SimProgram program(/*capacity=*/1000);
  const auto made = chain(program, 50, 100);
  EXPECT_GE(program.engine.counters().evictions, 40U);
  EXPECT_LE(program.device.peak, 1000U);
  for (const Var var : made) {
    EXPECT_TRUE(program.holds_expected(var));
    program.check_invariants();
  }
}

TEST(EngineTest, ReplaysLongChainsWithoutRecursion) {
  SimProgram program(kAmple);
  const auto made = chain(program, 10000, 1);
  program.engine.evict_all();
  EXPECT_TRUE(program.holds_expected(made.back()));
  EXPECT_EQ(program.engine.counters().replays, 10000U);
  EXPECT_EQ(program.engine.counters().deepest_replay, 10000U);
}

TEST(EngineTest, KeepsOnlyWhatAReplayNeedsNext) {
  SimProgram program(kAmple);
  const auto made = chain(program, 100, 1);
  for (size_t i = 0; i + 1 < made.size(); ++i) {
    program.drop(made[i]);
  }
  program.evict(made.back());
  EXPECT_EQ(program.device.used, 1U); // the leaf
  program.device.capacity = 3;
  EXPECT_TRUE(program.holds_expected(made.back()));
  program.check_invariants();
}

TEST(EngineTest, ReplaysAnOpWithSeveralOutputsOnce) {
  SimProgram program(kAmple);
  SimProgram::OpSpec spec;
  spec.inputs = {program.leaf(8)};
  spec.fresh = {8, 8, 8};
  const auto parts = program.op(spec);
  const Var sum = program.op1(parts, 8);
  program.engine.evict_all();
  EXPECT_TRUE(program.holds_expected(sum));
  EXPECT_EQ(program.engine.counters().replays, 2U);
  for (const Var part : parts) {
    EXPECT_TRUE(program.is_resident(part));
    EXPECT_TRUE(program.holds_expected(part));
  }
}

TEST(EngineTest, DoesNotDuplicateOutputsThatStillAreResident) {
  SimProgram program(kAmple);
  SimProgram::OpSpec spec;
  spec.inputs = {program.leaf(8)};
  spec.fresh = {8, 8};
  const auto parts = program.op(spec);
  program.evict(parts[0]);
  EXPECT_TRUE(program.holds_expected(parts[0]));
  EXPECT_EQ(program.device.used, 24U);
  program.check_invariants();
}

TEST(EngineTest, ReplaysEachVersionOfAStorageInOrder) {
  SimProgram program(kAmple);
  const Var x = program.op1({program.leaf(8)}, 8);
  const Var before = program.op1({x}, 8);
  program.write(x);
  const Var between = program.op1({x}, 8);
  program.write(x, {before});
  const Var after = program.op1({x}, 8);
  for (const std::vector<Var>& order :
       {std::vector<Var>{before, between, after, x},
        {after, x, between, before},
        {x, before, after, between}}) {
    program.engine.evict_all();
    for (const Var var : order) {
      EXPECT_TRUE(program.holds_expected(var));
      program.check_invariants();
    }
  }
}

TEST(EngineTest, ForgetsTheOldVersionThatIsOverwrittenWhole) {
  SimProgram program(kAmple);
  const Var source = program.op1({program.leaf(8)}, 8);
  const Var x = program.op1({program.leaf(8)}, 8);
  SimProgram::OpSpec spec;
  spec.inputs = {source};
  spec.overwrites = {x};
  program.op(spec);
  program.engine.evict_all();
  EXPECT_TRUE(program.holds_expected(x));
  EXPECT_EQ(program.engine.counters().replays, 2U); // source, and the copy
}

TEST(EngineTest, ReadsAndOverwritesTheSameLeaf) {
  SimProgram program(kAmple);
  const Var x = program.leaf(8);
  SimProgram::OpSpec spec;
  spec.inputs = {x};
  spec.overwrites = {x};
  program.op(spec);
  program.check_invariants();
  program.engine.evict_all();
  EXPECT_TRUE(program.holds_expected(x));
}

TEST(EngineTest, ReadsAndOverwritesTheSameValue) {
  SimProgram program(kAmple);
  const Var x = program.op1({program.leaf(8)}, 8);
  SimProgram::OpSpec spec;
  spec.inputs = {x};
  spec.overwrites = {x};
  program.op(spec);
  program.check_invariants();
  program.engine.evict_all();
  EXPECT_TRUE(program.holds_expected(x));
}

TEST(EngineTest, RematerializesDependentsBeforeALeafIsWritten) {
  SimProgram program(kAmple);
  const Var parameter = program.leaf(8);
  const Var activation = program.op1({parameter}, 8);
  const Var further = program.op1({activation}, 8);
  program.evict(activation);
  program.evict(further);
  program.write(parameter);
  program.check_invariants();
  EXPECT_TRUE(program.is_resident(activation));
  EXPECT_TRUE(program.holds_expected(activation));
  EXPECT_FALSE(program.evict(activation)); // a leaf now
  EXPECT_TRUE(program.holds_expected(further));
  EXPECT_TRUE(program.holds_expected(parameter));
}

TEST(EngineTest, HoldsALeafForAsLongAsSomethingNeedsIt) {
  SimProgram program(kAmple);
  const Var input = program.leaf(8);
  const Var a = program.op1({input}, 8);
  const Var b = program.op1({a}, 8);
  program.evict(a);
  program.evict(b);
  program.drop(input);
  EXPECT_EQ(program.engine.census().held, 8U);
  EXPECT_TRUE(program.holds_expected(b));
  program.drop(a);
  program.drop(b);
  EXPECT_EQ(program.device.used, 0U);
  EXPECT_EQ(program.engine.census().storages, 0U);
  EXPECT_EQ(program.engine.census().op_records, 0U);
  EXPECT_TRUE(program.device.holders.empty());
}

// As momentum that was cloned from gradients: all of it is read at once.
TEST(EngineTest, GivesBackWhatIsHeldAsSoonAsItsDependentIsBack) {
  SimProgram program(kAmple);
  SimProgram::OpSpec update;
  std::vector<Var> gradients;
  for (int i = 0; i < 8; ++i) {
    gradients.push_back(program.leaf(8));
    update.writes.push_back(program.op1({gradients.back()}, 8));
  }
  program.engine.evict_all();
  for (const Var gradient : gradients) {
    program.drop(gradient);
  }
  EXPECT_EQ(program.engine.census().held, 64U);
  program.device.capacity = 64 + 8;
  program.op(update);
  EXPECT_EQ(program.engine.census().held, 0U);
  program.check_invariants();
}

TEST(EngineTest, WhatGradientsAreReadForIsALeafUnlessItIsMuchLarger) {
  SimProgram program(kAmple);
  const Var gradient = program.leaf(8, /*is_gradient=*/true);
  EXPECT_FALSE(program.evict(program.op1({gradient}, 8)));
  EXPECT_TRUE(program.evict(program.op1({gradient}, 32)));
  const Var state = program.op1({program.leaf(8)}, 8);
  program.write(state, {gradient});
  EXPECT_FALSE(program.evict(state));
  program.check_invariants();
}

TEST(EngineTest, GivesBackALeafThatDiedDuringAReplay) {
  SimProgram program(kAmple);
  const Var leaf = program.leaf(8);
  const Var x = program.op1({leaf}, 8);
  const Var y = program.op1({program.leaf(8)}, 8);
  program.engine.evict_all();
  program.device.during_replay = [&] { program.drop(leaf); };
  EXPECT_TRUE(program.holds_expected(y));
  EXPECT_EQ(program.engine.census().held, 8U); // for x
  EXPECT_TRUE(program.holds_expected(x));
  EXPECT_EQ(program.engine.census().held, 0U);
  program.check_invariants();
}

// The replay under way is to run the record that a leaf's death would cut.
TEST(EngineTest, CutsNoRecordThatAReplayUnderWayWillRun) {
  SimProgram program(kAmple);
  const Var leaf = program.leaf(8);
  const Var x = program.op1({leaf}, 8);
  SimProgram::OpSpec pair;
  pair.inputs = {leaf, x};
  pair.fresh = {8, 8};
  const auto parts = program.op(pair);
  const Var y = program.op1({parts[0]}, 8);
  program.evict(x);
  program.evict(parts[0]); // the other part is there, and would be cut
  program.evict(y);
  program.device.during_replay = [&] { program.drop(leaf); };
  EXPECT_TRUE(program.holds_expected(y));
  program.check_invariants();
  for (const Var var : {x, parts[0], parts[1]}) {
    EXPECT_TRUE(program.holds_expected(var));
  }
  EXPECT_EQ(program.engine.census().held, 0U);
  program.check_invariants();
}

// Of what a running op writes over, the old bytes go when it ends.
TEST(EngineTest, ALeafGoesUnderAnOpThatWritesOverItsDependent) {
  for (const bool dies : {true, false}) {
    SimProgram program(kAmple);
    const Var leaf = program.leaf(8);
    const Var x = program.op1({leaf}, 8);
    const Var y = program.op1({x}, 8);
    SimProgram::OpSpec spec;
    spec.writes = {x};
    spec.meanwhile = [&] { dies ? program.drop(leaf) : program.write(leaf); };
    program.op(spec);
    program.check_invariants();
    program.engine.evict_all();
    EXPECT_TRUE(program.holds_expected(y));
    EXPECT_TRUE(program.holds_expected(x));
    program.check_invariants();
  }
}

TEST(EngineTest, ReportsThatThereIsNoVictim) {
  SimProgram program(/*capacity=*/100);
  program.leaf(60);
  const Var x = program.op1({program.leaf(20)}, 20);
  program.engine.ensure_resident(program.id(x));
  EXPECT_EQ(program.engine.relieve_pressure(1), 0U);
  EXPECT_THROW(program.leaf(1), SimOutOfMemory);
  program.engine.unpin(program.id(x));
  program.check_invariants();
  program.leaf(1); // goes on
  EXPECT_FALSE(program.is_resident(x));
}

TEST(EngineTest, LeavesNoPinsWhenAReplayThrows) {
  SimProgram program(kAmple);
  const auto made = chain(program, 10, 8);
  for (uint64_t when = 1; when <= 10; ++when) {
    program.engine.evict_all();
    program.device.fail_replay_in = when;
    EXPECT_THROW(program.holds_expected(made.back()), SimOpFailed);
    program.check_invariants();
  }
  EXPECT_TRUE(program.holds_expected(made.back()));
  program.engine.evict_all();
  EXPECT_EQ(program.device.used, 8U); // all could be evicted but the leaf
}

TEST(EngineTest, LeavesNoPinsWhenAReplayOfWritesThrows) {
  SimProgram program(kAmple);
  const Var x = program.op1({program.leaf(8)}, 8);
  for (int i = 0; i < 5; ++i) {
    program.write(x);
  }
  for (uint64_t when = 1; when <= 6; ++when) {
    program.engine.evict_all();
    program.device.fail_replay_in = when;
    EXPECT_THROW(program.holds_expected(x), SimOpFailed);
    program.check_invariants();
  }
  EXPECT_TRUE(program.holds_expected(x));
}

TEST(EngineTest, KeepsItsStateWhenAnOpThrows) {
  SimProgram program(kAmple);
  const Var x = program.op1({program.leaf(8)}, 8);
  const Var y = program.op1({x}, 8);
  SimProgram::OpSpec spec;
  spec.inputs = {y};
  spec.writes = {x};
  spec.fails = true;
  EXPECT_THROW(program.op(spec), SimOpFailed);
  program.check_invariants();
  EXPECT_FALSE(program.evict(x)); // written in part: nothing could redo it
  program.engine.evict_all();
  EXPECT_TRUE(program.holds_expected(x));
  EXPECT_TRUE(program.holds_expected(y));
}

TEST(EngineTest, ReleasesOnUnpinWhatDiedWhilePinned) {
  SimProgram program(kAmple);
  const Var x = program.op1({program.leaf(8)}, 8);
  const VersionId id = program.id(x);
  program.engine.ensure_resident(id);
  program.drop(x);
  EXPECT_EQ(program.device.used, 16U);
  program.engine.unpin(id);
  EXPECT_EQ(program.device.used, 8U);
  program.check_invariants();
}

TEST(EngineTest, NeverEvictsWhatTheProgramPinned) {
  SimProgram program(kAmple);
  const Var x = program.op1({program.leaf(8)}, 8);
  program.engine.pin_by_user(program.id(x));
  program.engine.evict_all();
  EXPECT_TRUE(program.is_resident(x));
  program.engine.unpin_by_user(program.id(x));
  EXPECT_THROW(program.engine.unpin_by_user(program.id(x)), UsageError);
  program.engine.evict_all();
  EXPECT_FALSE(program.is_resident(x));
}

TEST(EngineTest, NeverEvictsWhatEscaped) {
  SimProgram program(kAmple);
  const Var x = program.op1({program.leaf(8)}, 8);
  program.escape(x, /*for_good=*/true);
  program.engine.evict_all();
  EXPECT_TRUE(program.is_resident(x));
  EXPECT_EQ(program.engine.census().escaped, 8U);
}

TEST(EngineTest, KeepsACopyOfASmallLeafThatIsWritten) {
  SimProgram program(kAmple);
  const Var bias = program.leaf(1);
  const Var x = program.op1({bias}, 8);
  EXPECT_TRUE(program.evict(x));
  program.write(bias);
  // The copy of one byte is enough to have the eight back.
  EXPECT_FALSE(program.is_resident(x));
  EXPECT_EQ(program.engine.census().held, 1U);
  EXPECT_TRUE(program.holds_expected(x));
  program.drop(x);
  EXPECT_EQ(program.engine.census().held, 0U);
  program.check_invariants();
}

// As the parameters that weight decay has been added from.
TEST(EngineTest, LeavesThatOneOpWritesCountAsOne) {
  SimProgram program(kAmple);
  SimProgram::OpSpec decay, step;
  for (int i = 0; i < 8; ++i) {
    step.writes.push_back(program.leaf(1));
    decay.fresh.push_back(1);
  }
  decay.inputs = step.writes;
  program.op(decay);
  program.op(step);
  EXPECT_EQ(program.engine.census().held, 0U); // not a copy of each
  program.check_invariants();
}

TEST(EngineTest, EscapeLeavesWhatWasComputedBeforeReplayable) {
  SimProgram program(kAmple);
  const Var x = program.op1({program.leaf(8)}, 8);
  const Var y = program.op1({x}, 8);
  EXPECT_TRUE(program.evict(y));
  program.escape(x, /*for_good=*/true);
  EXPECT_FALSE(program.is_resident(y));
  EXPECT_TRUE(program.holds_expected(y));
  program.check_invariants();
}

TEST(EngineTest, TreatsOutputsThatCannotBeReplayedAsLeaves) {
  SimProgram program(kAmple);
  SimProgram::OpSpec spec;
  spec.inputs = {program.leaf(8)};
  spec.fresh = {8};
  spec.replayable = false;
  const Var x = program.op(spec)[0];
  EXPECT_FALSE(program.evict(x));
  EXPECT_EQ(program.engine.counters().not_replayable.at("test"), 1U);
}

TEST(EngineTest, DoesNotLetHistoryGrowOverTrainingSteps) {
  SimProgram program(kAmple);
  const Var weight = program.leaf(8);
  const Var momentum = program.leaf(8);
  size_t most = 0;
  for (int step = 0; step < 500; ++step) {
    const Var input = program.leaf(8);
    const Var h = program.op1({input, weight}, 8);
    const Var grad = program.op1({h, weight}, 8);
    program.write(momentum, {grad});
    program.write(weight, {momentum});
    for (const Var var : {input, h, grad}) {
      program.drop(var);
    }
    most = std::max<size_t>(most, program.engine.census().op_records);
  }
  EXPECT_LE(most, 8U);
  EXPECT_EQ(program.engine.census().storages, 2U);
}

// A value that each step makes of the one before.
Var carry_along(SimProgram& program, int steps) {
  Var state = program.op1({program.leaf(8)}, 8);
  for (int step = 0; step < steps; ++step) {
    const Var next = program.op1({state}, 8);
    program.drop(state);
    state = next;
  }
  return state;
}

TEST(EngineTest, BoundsTheHistoryOfAValueCarriedAlong) {
  SimProgram program(kAmple);
  const Var state = carry_along(program, 20000);
  EXPECT_LE(program.engine.census().op_records, 4096U);
  program.evict(state);
  EXPECT_TRUE(program.holds_expected(state));
}

// As where a small model follows a large one in the same process.
TEST(EngineTest, BoundsHistoryAnewOnceItWasRetired) {
  SimProgram program(kAmple);
  for (const Var var : chain(program, 5000, 8)) {
    program.drop(var);
  }
  program.engine.retire();
  carry_along(program, 6000);
  EXPECT_LE(program.engine.census().op_records, 4096U);
}

TEST(EngineTest, RetiresWithEverythingResidentAndNoHistory) {
  SimProgram program(kAmple);
  const auto made = chain(program, 20, 8);
  program.engine.evict_all();
  program.engine.retire();
  EXPECT_EQ(program.engine.census().op_records, 0U);
  for (const Var var : made) {
    EXPECT_TRUE(program.is_resident(var));
    EXPECT_TRUE(program.holds_expected(var));
  }
}

TEST(EngineTest, SaysThatItCannotRetireWithinTheBudget) {
  SimProgram program(/*capacity=*/100);
  const auto made = chain(program, 20, 10);
  EXPECT_THROW(program.engine.retire(), SimOutOfMemory);
  program.check_invariants();
  program.device.capacity = kAmple;
  program.engine.retire();
  for (const Var var : made) {
    EXPECT_TRUE(program.holds_expected(var));
  }
}

TEST(EngineTest, OverwritesAValueAndTheLeafThatItCameFrom) {
  SimProgram program(kAmple);
  const Var leaf = program.leaf(8);
  const Var x = program.op1({leaf}, 8);
  const Var y = program.op1({x}, 8);
  program.evict(y);
  SimProgram::OpSpec spec;
  spec.overwrites = {x, leaf}; // which makes a leaf of x, too
  program.op(spec);
  program.check_invariants();
  for (const Var var : {leaf, x, y}) {
    EXPECT_TRUE(program.holds_expected(var));
  }
}

TEST(EngineTest, GivesUpNoHeldLeafUnderAnOpThatWritesOnItsDependents) {
  SimProgram program(/*capacity=*/40);
  const Var leaf = program.leaf(8);
  const Var x = program.op1({leaf}, 16);
  const Var y = program.op1({x}, 8);
  program.drop(leaf); // held: x could not be replayed without it
  SimProgram::OpSpec spec;
  spec.writes = {x};
  spec.fresh = {20}; // evicts y, and would want the leaf's bytes
  EXPECT_THROW(program.op(spec), SimOutOfMemory);
  program.check_invariants();
  program.device.capacity = kAmple;
  EXPECT_TRUE(program.holds_expected(y));
  EXPECT_TRUE(program.holds_expected(x));
}

TEST(EngineTest, ForkedChildHasNoLimitAndOnlyItsOwnOps) {
  Config config;
  config.budget = 8;
  config.chaos = true;
  SimProgram program(kAmple, config);
  const Var x = program.leaf(8);
  SimProgram::OpSpec spec;
  spec.inputs = {x};
  spec.fresh = {8};
  spec.meanwhile = [&] {
    // Of another thread, which the child does not have.
    Holders none;
    VersionIds inputs;
    Writes writes;
    program.engine.begin_op(none, inputs, writes);
    program.engine.lock_replays_for_fork();
    program.engine.lock_for_fork();
    program.engine.reset_in_child(/*own_ops=*/1);
  };
  const Var y = program.op(spec)[0];
  EXPECT_EQ(program.engine.ops_in_flight(), 0);
  EXPECT_EQ(program.engine.config().budget, Config::kUnlimited);
  EXPECT_TRUE(program.is_resident(y)); // no chaos any more
  program.engine.evict_all();
  EXPECT_TRUE(program.holds_expected(y));
  program.check_invariants();
}

TEST(EngineTest, SaysWhichPolicyItDoesNotKnow) {
  Config config;
  config.policy = "belady";
  EXPECT_THROW(SimProgram(kAmple, config), UsageError);
}

} // namespace
} // namespace c10::remat
