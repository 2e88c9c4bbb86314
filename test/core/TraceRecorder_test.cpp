#include "SimProgram.h"

#include <c10/remat/Errors.h>
#include <c10/remat/Trace.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace c10::remat {
namespace {

using Kind = TraceEvent::Kind;
using Var = SimProgram::Var;

std::string path_in_test_folder(const char* name) {
  return testing::TempDir() + name;
}

// Reads a trace as the simulator does: every id is told of before it is used,
// no number is told of twice, and nothing dies twice.
struct TraceModel {
  explicit TraceModel(const std::string& path) {
    TraceReader reader(path);
    TraceEvent event;
    while (reader.next(event)) {
      ++counts[event.kind];
      apply(event);
    }
  }

  void apply(const TraceEvent& event) {
    switch (event.kind) {
    case Kind::Version:
      add_version(event.id, event.size);
      break;
    case Kind::Op:
      for (const uint64_t input : event.inputs) {
        EXPECT_TRUE(live.count(input) != 0) << input;
      }
      for (const auto& overwrite : event.overwrites) {
        remove(overwrite.input);
      }
      for (const auto& output : event.outputs) {
        if (output.size != 0) {
          add_version(output.id, output.size);
        }
      }
      recorded += event.id != 0 ? 1 : 0;
      EXPECT_TRUE(event.id == 0 || ops.insert(event.id).second) << event.id;
      break;
    case Kind::Replay:
      EXPECT_TRUE(ops.count(event.id) != 0) << event.id;
      break;
    case Kind::Death:
      remove(event.id);
      break;
    case Kind::Access:
    case Kind::LeafWrite:
    case Kind::ParameterWrite:
      EXPECT_TRUE(live.count(event.id) != 0) << event.id;
      break;
    case Kind::Evict: // also of intermediates that were kept
      EXPECT_TRUE(known.count(event.id) != 0) << event.id;
      break;
    case Kind::Pressure:
      break;
    }
  }

  void add_version(uint64_t id, Bytes size) {
    EXPECT_TRUE(known.insert(id).second) << id;
    live[id] = size;
  }
  void remove(uint64_t id) {
    EXPECT_EQ(live.erase(id), 1U) << id;
  }
  Bytes live_bytes() const {
    Bytes sum = 0;
    for (const auto& [id, size] : live) {
      sum += size;
    }
    return sum;
  }

  std::map<Kind, uint64_t> counts;
  uint64_t recorded = 0;
  std::set<uint64_t> known;
  std::set<uint64_t> ops;
  std::map<uint64_t, Bytes> live; // in the program's hands
};

// A hundred random steps on what there is.
void run_some(SimProgram& program, std::mt19937& random) {
  for (int step = 0; step < 100; ++step) {
    const auto vars = program.vars();
    const auto any = [&] { return vars[random() % vars.size()]; };
    try {
      if (vars.size() < 4) {
        program.leaf(16);
        continue;
      }
      SimProgram::OpSpec spec;
      switch (random() % 6) {
      case 0:
        spec.replayable = false;
        [[fallthrough]];
      case 1:
        spec.inputs = {any()};
        spec.fresh = {8, 24};
        program.op(spec);
        break;
      case 2:
        program.write(any(), {any()});
        break;
      case 3:
        spec.overwrites = {any()};
        spec.inputs = {any()};
        if (spec.inputs != spec.overwrites) {
          program.op(spec);
        }
        break;
      case 4:
        EXPECT_TRUE(program.holds_expected(any()));
        break;
      default:
        program.drop(any());
      }
    } catch (const SimOutOfMemory&) {
    } catch (const WorkingSetTooLarge&) {
    }
  }
}

TEST(TraceRecorderTest, WritesWhatTheEngineCounts) {
  const std::string path = path_in_test_folder("counts.trace");
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    SimProgram program(/*capacity=*/400);
    run_some(program, random);
    const Census before = program.engine.census();
    program.engine.reset_counters();
    program.engine.start_trace(path);
    run_some(program, random);
    program.engine.stop_trace();
    const Counters counters = program.engine.counters();
    const Census census = program.engine.census();

    const TraceModel trace(path);
    auto counts = trace.counts;
    EXPECT_EQ(counts[Kind::Replay], counters.replays);
    EXPECT_EQ(counts[Kind::Op], counters.ops_captured + before.op_records);
    EXPECT_GE(counts[Kind::Evict], counters.evictions);
    EXPECT_EQ(trace.live_bytes(), census.resident + census.evicted);
    EXPECT_GT(counters.replays, 0U);
  }
}

TEST(TraceRecorderTest, StartsWithWhatThereIs) {
  SimProgram program(1 << 20);
  const Var leaf = program.leaf(8);
  const Var evicted = program.op1({leaf}, 16);
  const Var dropped = program.op1({evicted}, 32);
  program.op1({dropped}, 64);
  program.drop(dropped);
  program.evict(evicted);
  const std::string path = path_in_test_folder("start.trace");
  program.engine.start_trace(path);
  program.engine.stop_trace();
  const TraceModel trace(path);
  auto counts = trace.counts;
  EXPECT_EQ(counts[Kind::Version], 1U);
  EXPECT_EQ(counts[Kind::Op], 3U);
  EXPECT_EQ(counts[Kind::Evict], 1U);
  EXPECT_EQ(counts[Kind::Death], 1U);
  EXPECT_EQ(trace.live_bytes(), 8U + 16 + 64);
}

TEST(TraceRecorderTest, OpsThatAreNotRecordedHaveNoNumber) {
  SimProgram program(1 << 20);
  const std::string path = path_in_test_folder("unrecorded.trace");
  program.engine.start_trace(path);
  SimProgram::OpSpec spec;
  spec.inputs = {program.leaf(8)};
  spec.fresh = {16};
  spec.replayable = false;
  program.op(spec);
  program.engine.stop_trace();
  const TraceModel trace(path);
  auto counts = trace.counts;
  EXPECT_EQ(counts[Kind::Op], 1U);
  EXPECT_EQ(trace.recorded, 0U);
  EXPECT_EQ(trace.live_bytes(), 24U);
}

TEST(TraceRecorderTest, AFullDiskIsReportedAtTheEndOnly) {
  SimProgram program(/*capacity=*/400);
  try {
    program.engine.start_trace("/dev/full");
  } catch (const UsageError&) {
    GTEST_SKIP() << "no /dev/full";
  }
  std::mt19937 random(1);
  for (int i = 0; i < 10; ++i) {
    run_some(program, random);
  }
  EXPECT_THROW(program.engine.stop_trace(), UsageError);
  EXPECT_NO_THROW(program.engine.stop_trace());
  program.check_invariants();
}

TEST(TraceRecorderTest, OneTraceAtATime) {
  SimProgram program(1 << 20);
  program.engine.start_trace(path_in_test_folder("one.trace"));
  EXPECT_THROW(
      program.engine.start_trace(path_in_test_folder("two.trace")), UsageError);
  program.engine.stop_trace();
  EXPECT_THROW(program.engine.start_trace("/nowhere/at/all.trace"), UsageError);
  EXPECT_NO_THROW(program.engine.stop_trace());
}

} // namespace
} // namespace c10::remat
