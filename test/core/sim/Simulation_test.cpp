#include <c10/remat/sim/Planner.h>
#include <c10/remat/sim/SimrdLog.h>
#include <c10/remat/sim/Simulation.h>
#include <c10/remat/sim/TraceWorkload.h>

#include <c10/remat/Errors.h>
#include <c10/remat/Trace.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace c10::remat {
namespace {

using Outcome = SimulationResult::Outcome;

// x -> a -> b -> c, then a and c are read together. Sizes 8, costs 10, 20, 30
// and 40.
constexpr char kLog[] =
    R"({"ANNOTATION":"START","INSTRUCTION":"ANNOTATE"}
{"INSTRUCTION":"CONSTANT","NAME":"x"}
{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"x"}
{"ARGS":["x"],"INSTRUCTION":"CALL","NAME":"f","RESULT":["a"],"TIME":"10"}
{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"a"}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"a"}
{"ARGS":["a"],"INSTRUCTION":"CALL","NAME":"f","RESULT":["b"],"TIME":"20"}
{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"b"}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"b"}
{"ARGS":["b"],"INSTRUCTION":"CALL","NAME":"f","RESULT":["c"],"TIME":"30"}
{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"c"}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"c"}
{"INSTRUCTION":"RELEASE","NAME":"b"}
{"ARGS":["a","c"],"INSTRUCTION":"CALL","NAME":"g","RESULT":["d"],"TIME":"40"}
{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"d"}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"d"}
)";

Workload workload_of(const std::string& log) {
  std::istringstream input(log);
  return read_simrd_log(input, "log");
}

TEST(SimrdLogTest, GivesPeakAndCost) {
  const Workload workload = workload_of(kLog);
  EXPECT_EQ(workload.cost(), 100);
  EXPECT_EQ(workload.peak(), 32u); // x, a, b, c; then x, a, c, d
}

TEST(SimrdLogTest, MutateMakesAFreshStorage) {
  const Workload workload = workload_of(
      R"({"INSTRUCTION":"CONSTANT","NAME":"x"}
{"INSTRUCTION":"MEMORY","MEMORY":5,"NAME":"x"}
{"ARGS":["x"],"INSTRUCTION":"MUTATE","MUTATE":[0],"NAME":"f_","TIME":"3"}
)");
  EXPECT_EQ(workload.peak(), 10u);
  EXPECT_EQ(simulate(workload, "dtr", 10).peak, 10u);
}

TEST(SimrdLogTest, SaysWhatIsWrongAndWhere) {
  const auto message_of = [](const std::string& log) -> std::string {
    try {
      workload_of(log);
    } catch (const TraceError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(
      message_of(R"({"INSTRUCTION":"RELEASE","NAME":"y"})").find("log:1: "),
      std::string::npos);
  EXPECT_NE(
      message_of(R"({"INSTRUCTION":"CONSTANT","NAME":"y"})").find("cut off"),
      std::string::npos);
  EXPECT_NE(
      message_of(R"({"INSTRUCTION":"JUMP"})").find("such as CALL"),
      std::string::npos);
  EXPECT_NE(message_of("{\"A\":").find("expected"), std::string::npos);
}

TEST(SimulationTest, NothingIsEvictedWithinThePeak) {
  const Workload workload = workload_of(kLog);
  for (const char* policy : {"lru", "dtr", "centrality"}) {
    const SimulationResult result = simulate(workload, policy, 32);
    EXPECT_EQ(result.outcome, Outcome::Completed);
    EXPECT_EQ(result.recompute, 0);
    EXPECT_EQ(result.overhead(), 1.0);
    EXPECT_EQ(result.peak, 32u);
  }
}

// Room for three: x, a and b; then d is to be made from a and c.
TEST(SimulationTest, WhatIsReadTogetherMustFit) {
  const SimulationResult result = simulate(workload_of(kLog), "lru", 24);
  EXPECT_EQ(result.outcome, Outcome::OutOfMemory);
  EXPECT_EQ(result.peak, 24u);
  EXPECT_GE(result.evictions, 1u);
}

TEST(SimulationTest, DtrRulesKeepConstantsAndRunViewsAgain) {
  const std::string with_view = std::string(kLog) +
      R"({"ARGS":["a"],"INSTRUCTION":"CALL","NAME":"view","RESULT":["v"],"TIME":"1"}
{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"v"}
{"ALIAS":"0","INSTRUCTION":"ALIAS","NAME":"v"}
{"INSTRUCTION":"RELEASE","NAME":"x"}
)";
  const Workload workload = workload_of(with_view);
  const SimulationResult free = simulate_as_dtr(workload, "dtr", 32);
  EXPECT_EQ(free.outcome, Outcome::Completed);
  EXPECT_EQ(free.elapsed, 102); // the clock starts at 1
  EXPECT_THROW(simulate_as_dtr(workload, "centrality", 32), UsageError);
  EXPECT_THROW(simulate(workload, "no such policy", 32), UsageError);
}

TEST(SimulationTest, StopsWhenItOnlyRecomputes) {
  // 60 ops, each of which reads the first of all through a chain.
  std::string log = R"({"INSTRUCTION":"CONSTANT","NAME":"0"}
{"INSTRUCTION":"MEMORY","MEMORY":"1","NAME":"0"}
)";
  const auto call = [&](const std::string& from, const std::string& to) {
    log += R"({"ARGS":[")" + from +
        R"("],"INSTRUCTION":"CALL","NAME":"f","RESULT":[")" + to +
        R"("],"TIME":"10"}
{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":")" +
        to + R"("}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":")" +
        to + "\"}\n";
  };
  for (int i = 0; i < 60; ++i) {
    call(std::to_string(i), std::to_string(i + 1));
  }
  for (int i = 60; i-- > 1;) {
    call(std::to_string(i), "back");
    log += R"({"INSTRUCTION":"RELEASE","NAME":"back"})"
           "\n";
  }
  const Workload workload = workload_of(log);
  EXPECT_EQ(simulate(workload, "lru", 3 * 8 + 1).outcome, Outcome::Thrashed);
  EXPECT_EQ(
      simulate_as_dtr(workload, "lru", 3 * 8 + 1).outcome, Outcome::Thrashed);
}

TEST(TraceWorkloadTest, BothFormatsMeanTheSame) {
  const Workload workload = workload_of(kLog);
  const std::string trace = testing::TempDir() + "/remat_workload.trace";
  const std::string log = testing::TempDir() + "/remat_workload.log";
  write_trace(workload, trace);
  write_simrd_log(workload, log);
  for (const std::string& path : {trace, log}) {
    Workload again = read_workload(path);
    again.ends_resident = true; // which our format does not say
    EXPECT_EQ(again.cost(), workload.cost());
    EXPECT_EQ(again.peak(), workload.peak());
    for (const Bytes budget : {32, 24, 16}) {
      const SimulationResult expected = simulate(workload, "dtr", budget);
      const SimulationResult actual = simulate(again, "dtr", budget);
      EXPECT_EQ(actual.outcome, expected.outcome);
      EXPECT_EQ(actual.elapsed, expected.elapsed);
      EXPECT_EQ(actual.evictions, expected.evictions);
    }
    std::remove(path.c_str());
  }
}

// An op that writes over what it reads takes no memory of its own, and a write
// to a leaf cuts what rests on it.
TEST(TraceWorkloadTest, WritesInPlace) {
  std::istringstream input(
      "{\"remat_trace\":1}\n"
      "{\"version\":1,\"size\":8}\n"
      "{\"op\":3,\"name\":\"f\",\"cost\":10,\"inputs\":[1],\"outputs\":[[2,8]],"
      "\"overwrites\":[]}\n"
      "{\"op\":5,\"name\":\"g_\",\"cost\":10,\"inputs\":[2],\"outputs\":[[4,8]]"
      ",\"overwrites\":[[2,4]]}\n"
      "{\"leaf_write\":1}\n"
      "{\"op\":0,\"name\":\"step_\",\"cost\":5,\"inputs\":[4],\"outputs\":[],"
      "\"overwrites\":[]}\n"
      "{\"death\":1}\n"
      "{\"version\":6,\"size\":8}\n"
      "{\"access\":4}\n");
  const Workload workload = read_trace_workload(input, "trace");
  EXPECT_EQ(workload.peak(), 16u);
  const SimulationResult result = simulate(workload, "dtr", 16);
  EXPECT_EQ(result.outcome, Outcome::Completed);
  EXPECT_EQ(result.peak, 16u);
  EXPECT_EQ(result.elapsed, 25);
}

// Forward and backward of `layers` ops of unlike costs and sizes, some of which
// read what an earlier one has made.
Workload random_network(std::mt19937& random, int layers) {
  using Step = Workload::Step;
  Workload workload;
  const auto make = [&](Bytes size) {
    return workload.add_tensor(workload.add_storage(size));
  };
  const auto add = [&](Step::Kind kind, Workload::Tensor tensor) {
    Step step;
    step.kind = kind;
    step.tensor = tensor;
    workload.steps.push_back(std::move(step));
  };
  const auto op = [&](std::vector<Workload::Tensor> inputs, Bytes size) {
    Step step;
    step.name = "f";
    step.cost = 10 << (random() % 6);
    step.inputs = std::move(inputs);
    step.outputs = {make(size)};
    workload.steps.push_back(step);
    return step.outputs[0];
  };
  const Workload::Tensor weight = make(8);
  add(Step::Kind::Constant, weight);
  std::vector<Workload::Tensor> made{weight};
  std::vector<std::vector<Workload::Tensor>> read;
  for (int i = 0; i < layers; ++i) {
    std::vector<Workload::Tensor> inputs{made.back()};
    if (random() % 3 == 0) {
      inputs.push_back(made[random() % made.size()]);
    }
    read.push_back(inputs);
    made.push_back(op(inputs, Bytes{8} << (random() % 4)));
  }
  Workload::Tensor gradient = op({made.back()}, 8);
  for (int i = layers; i-- > 0;) {
    std::vector<Workload::Tensor> inputs = read[i];
    inputs.push_back(gradient);
    const Workload::Tensor next = op(inputs, 8);
    add(Step::Kind::Release, gradient);
    add(Step::Kind::Release, made[i + 1]);
    gradient = next;
  }
  add(Step::Kind::Release, gradient);
  return workload;
}

// Of the last of several iterations.
CostNs settled(
    const Workload& workload,
    const std::function<SimulationResult(const Workload&)>& run) {
  const SimulationResult all = run(repeated(workload, 6));
  EXPECT_TRUE(all.is_feasible());
  return all.recompute - run(repeated(workload, 5)).recompute;
}

// What only ops that are not recorded read, as in a backward pass, is read in
// their order: the cheaper of two values is read at once, the other much later.
TEST(ForesightTest, KnowsWhenUnrecordedOpsRead) {
  std::istringstream trace(R"({"remat_trace":1}
{"version":1,"size":1}
{"op":1,"name":"a","cost":12,"inputs":[1],"outputs":[[2,100]],"overwrites":[]}
{"op":2,"name":"b","cost":10,"inputs":[1],"outputs":[[3,100]],"overwrites":[]}
{"version":4,"size":100}
{"op":0,"name":"makes_gradient","cost":1,"inputs":[],"outputs":[],"overwrites":[]}
{"op":0,"name":"reads_b","cost":1000,"inputs":[3],"outputs":[],"overwrites":[]}
{"death":3}
{"death":4}
{"op":0,"name":"reads_a","cost":1,"inputs":[2],"outputs":[],"overwrites":[]}
{"death":2}
)");
  const Workload workload = read_trace_workload(trace, "trace");
  const Foresight foresight = foresee(workload);
  EXPECT_EQ(foresight.future->ops.size(), 5u);
  EXPECT_EQ(foresight.peak, 2u);
  const SimulationResult result = simulate(
      workload,
      std::make_unique<NextUsePolicy>(
          foresight.future, std::make_shared<Tuning>()),
      201);
  EXPECT_EQ(result.evictions, 1u);
  EXPECT_EQ(result.recompute, 12);
}

TEST(LearningTest, RecomputesNoMoreThanDtr) {
  std::mt19937 random(5);
  CostNs dtr_total = 0;
  CostNs learned_total = 0;
  for (int i = 0; i < 30; ++i) {
    const Workload workload = random_network(random, 20 + random() % 60);
    const Bytes budget = repeated(workload, 2).peak() * (50 + i % 4 * 10) / 100;
    const CostNs dtr = settled(workload, [&](const Workload& iterations) {
      return simulate(iterations, "dtr", budget);
    });
    const CostNs learned = settled(workload, [&](const Workload& iterations) {
      return simulate_learning(iterations, budget);
    });
    EXPECT_LE(learned, dtr) << "network " << i;
    dtr_total += dtr;
    learned_total += learned;
  }
  EXPECT_LT(learned_total, dtr_total * 0.75);
}

TEST(LearningTest, IsTheSameAgain) {
  std::mt19937 random(7);
  const Workload workload = repeated(random_network(random, 60), 6);
  const Bytes budget = workload.peak() / 2;
  const SimulationResult first = simulate_learning(workload, budget);
  const SimulationResult second = simulate_learning(workload, budget);
  EXPECT_EQ(first.recompute, second.recompute);
  EXPECT_EQ(first.evictions, second.evictions);
}

} // namespace
} // namespace c10::remat
