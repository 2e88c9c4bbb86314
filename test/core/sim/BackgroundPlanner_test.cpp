#include <c10/remat/sim/BackgroundPlanner.h>

#include <c10/remat/policy/NextUsePolicy.h>
#include <c10/remat/sim/PlanSearch.h>
#include <c10/remat/sim/Planner.h>
#include <c10/remat/sim/Simulation.h>
#include <c10/remat/sim/TraceWorkload.h>

#include "SimTraining.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <thread>

namespace c10::remat {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<PlanExchange> plans_of(SimTraining& training) {
  return training.program.engine.plan_exchange();
}

// The request that the training makes once an iteration was repeated.
PlanRequest request_of(SimTraining& training) {
  const auto plans = plans_of(training);
  plans->open();
  for (int i = 0; i < 8; ++i) {
    training.iterate();
    if (auto request = plans->poll()) {
      return std::move(*request);
    }
  }
  ADD_FAILURE() << "no plan is asked for";
  return {};
}

// False: that took too long.
bool iterate_until(SimTraining& training, const std::function<bool()>& done) {
  for (int i = 0; i < 5000; ++i) {
    if (done()) {
      return true;
    }
    training.iterate();
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

// A search in which each simulation takes long, since it is of much.
PlanRequest long_request(uint64_t iteration) {
  SimTraining training(300);
  training.set_room(300);
  PlanRequest request;
  const auto plans = plans_of(training);
  plans->open();
  for (int i = 0; i < 8; ++i) {
    training.iterate(4000);
    if (auto asked = plans->poll()) {
      request = std::move(*asked);
      break;
    }
  }
  EXPECT_FALSE(request.program.empty());
  request.iteration = iteration;
  return request;
}

TEST(PlanSearchTest, TheSameRequestHasTheSameAnswer) {
  SimTraining training(9);
  const PlanRequest request = request_of(training);
  const auto first = search_plan(request);
  const auto second = search_plan(request);
  ASSERT_TRUE(first && second && first->is_found && first->tuning);
  EXPECT_EQ(first->iteration, request.iteration);
  EXPECT_EQ(first->tuning->cost, second->tuning->cost);
  EXPECT_EQ(first->tuning->size, second->tuning->size);
  EXPECT_EQ(first->tuning->distance, second->tuning->distance);
  EXPECT_EQ(first->tuning->keeps, second->tuning->keeps);
  EXPECT_EQ(first->tuning->bias, second->tuning->bias);
}

// What is large enough to have a place.
TEST(PlannerTest, ForeseesWhatItsPlanEvictsUntilThePeak) {
  SimTraining training(9);
  const PlanRequest request = request_of(training);
  Workload workload = workload_of(request.program, "");
  for (Bytes& size : workload.size_of) {
    size <<= 20;
  }
  const Bytes room = request.room << 20;
  Planner planner(workload, room);
  const Plan& plan = planner.improve();
  ASSERT_TRUE(plan.result.is_feasible());
  ASSERT_GT(plan.result.evictions, 0u);
  const Foreseen foreseen = planner.foreseen();
  const Foresight seen = foresee(workload);
  EXPECT_EQ(foreseen.until, seen.peak);
  NextUsePolicy::Pasts pasts;
  simulate(
      workload,
      std::make_unique<NextUsePolicy>(seen.future, plan.tuning, &pasts),
      room);
  pasts.resize(seen.future->values.size());
  Bytes staying = 0;
  size_t evicted = 0;
  for (uint32_t i = 0; i < pasts.size(); ++i) {
    const Future::Value& value = seen.future->values[i];
    const uint32_t fate = foreseen.fate(i);
    if (fate == Foreseen::kStays) {
      staying += value.size;
      EXPECT_EQ(pasts[i].returns, 0u) << i;
      EXPECT_LT(value.maker, seen.peak) << i;
      EXPECT_GT(value.uses.back(), seen.peak) << i;
    } else if (fate != Foreseen::kEither) {
      ++evicted;
      EXPECT_GT(pasts[i].returns, 0u) << i;
      EXPECT_GT(fate, value.maker) << i;
      EXPECT_LE(fate, seen.peak) << i;
    }
  }
  EXPECT_GT(staying, 0u);
  EXPECT_LE(staying, room);
  EXPECT_GT(evicted, 0u);
}

TEST(PlanSearchTest, FindsNothingForWhatTheEngineDidNotSee) {
  SimTraining training(9);
  PlanRequest request = request_of(training);
  auto other = std::make_shared<Future>(*request.future);
  other->values.back().size += 8;
  request.future = other;
  const auto answer = search_plan(request);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->is_found);
}

TEST(PlanSearchTest, EndsWhenItMayNotGoOn) {
  SimTraining training(9);
  const PlanRequest request = request_of(training);
  int steps = 0;
  const std::function<bool()> may_go_on = [&] { return ++steps < 300; };
  EXPECT_FALSE(search_plan(request, &may_go_on));
  EXPECT_LT(steps, 310);
}

TEST(BackgroundPlannerTest, IterationsGetBetterAndNoneWorseThanDtr) {
  SimTraining online(9, "dtr");
  SimTraining training(9);
  BackgroundPlanner planner;
  planner.start(plans_of(training), 1.0);
  CostNs dtr = 0;
  for (int i = 0; i < 4; ++i) {
    dtr = online.recompute();
  }
  ASSERT_TRUE(
      iterate_until(training, [&] { return training.recompute() < dtr; }));
  planner.stop();
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(training.recompute(), dtr);
  }
  EXPECT_TRUE(training.holds_expected());
  training.program.check_invariants();
}

TEST(BackgroundPlannerTest, StartsAndStopsAtAnyTime) {
  SimTraining training(9);
  BackgroundPlanner planner;
  planner.stop();
  for (int i = 0; i < 40; ++i) {
    planner.start(plans_of(training), i % 2 == 0 ? 1.0 : 0.05);
    EXPECT_TRUE(planner.is_running());
    for (int j = 0; j < i % 5; ++j) {
      training.iterate();
    }
    if (i % 3 != 0) {
      planner.stop();
      EXPECT_FALSE(planner.is_running());
    }
  }
  planner.start(plans_of(training), 0);
  EXPECT_FALSE(planner.is_running());
  planner.start(nullptr, 1.0);
  EXPECT_FALSE(planner.is_running());
  EXPECT_TRUE(training.holds_expected());
}

TEST(BackgroundPlannerTest, StopEndsALongSearch) {
  PlanExchange exchange;
  const auto shared =
      std::shared_ptr<PlanExchange>(&exchange, [](PlanExchange*) {});
  PlanRequest request = long_request(1);
  BackgroundPlanner planner;
  planner.start(shared, 0.001); // of seconds of work
  ASSERT_TRUE(exchange.ask(request));
  std::this_thread::sleep_for(milliseconds(50));
  const auto start = std::chrono::steady_clock::now();
  planner.stop();
  // The thread has to run for it, at the lowest priority on a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_FALSE(exchange.take_answer());
  EXPECT_EQ(exchange.session(), 0u);
}

TEST(BackgroundPlannerTest, StaysWithinItsShare) {
  PlanExchange exchange;
  const auto shared =
      std::shared_ptr<PlanExchange>(&exchange, [](PlanExchange*) {});
  PlanRequest request = long_request(1);
  BackgroundPlanner planner;
  planner.start(shared, 0.05);
  ASSERT_TRUE(exchange.ask(request));
  const std::clock_t before = std::clock(); // of the process; this sleeps
  std::this_thread::sleep_for(milliseconds(600));
  const double used =
      static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  planner.stop();
  EXPECT_LT(used, 0.1); // 0.03, and what is above it at the end
}

TEST(BackgroundPlannerTest, OneRequestIsServedAfterTheOther) {
  PlanExchange exchange;
  exchange.open();
  PlanRequest request;
  request.iteration = 1;
  ASSERT_TRUE(exchange.ask(request));
  EXPECT_FALSE(exchange.ask(request));
  ASSERT_TRUE(exchange.poll());
  request.iteration = 2;
  EXPECT_FALSE(exchange.ask(request));
  EXPECT_FALSE(exchange.is_cancelled());
  PlanAnswer answer;
  answer.iteration = 1;
  exchange.answer(answer);
  EXPECT_TRUE(exchange.ask(request));
  EXPECT_FALSE(exchange.take_answer()); // it is not for this request
}

TEST(BackgroundPlannerTest, ABudgetThatChangesGetsAPlanOfItsOwn) {
  SimTraining training(9);
  const auto plans = plans_of(training);
  const PlanRequest first = request_of(training);
  EXPECT_EQ(first.budget, 13 * SimTraining::kSize);
  plans->answer(*search_plan(first));
  training.set_room(7);
  std::optional<PlanRequest> again;
  for (int i = 0; i < 8 && !again; ++i) {
    training.iterate();
    again = plans->poll();
  }
  ASSERT_TRUE(again);
  EXPECT_EQ(again->budget, 11 * SimTraining::kSize);
  EXPECT_LE(again->room, again->budget);
  const auto answer = search_plan(*again);
  ASSERT_TRUE(answer && answer->is_found);
  plans->answer(*answer);
  // That is all it wants to know.
  for (int i = 0; i < 20; ++i) {
    training.iterate();
    EXPECT_FALSE(plans->poll());
  }
  EXPECT_TRUE(training.holds_expected());
}

// Exact: the simulation of an iteration recomputes what the engine then does.
TEST(BackgroundPlannerTest, APlanDoesWhatItsSimulationSaid) {
  SimTraining training(9);
  const PlanRequest request = request_of(training);
  const auto answer = search_plan(request);
  ASSERT_TRUE(answer && answer->is_found && answer->tuning);
  const Workload workload = workload_of(request.program, "");
  const CostNs expected =
      simulate(
          workload,
          std::make_unique<NextUsePolicy>(request.future, answer->tuning),
          request.room)
          .recompute;
  plans_of(training)->answer(*answer);
  training.iterate(); // takes the answer when it begins
  EXPECT_EQ(training.recompute(), expected);
}

TEST(BackgroundPlannerTest, AForkedChildGoesOnWithoutOne) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a forked child may not start threads under ThreadSanitizer";
#endif
  SimTraining training(9);
  BackgroundPlanner planner;
  planner.start(plans_of(training), 0.5);
  for (int i = 0; i < 5; ++i) {
    training.iterate();
    planner.lock_for_fork();
    const pid_t child = fork();
    if (child == 0) {
      planner.reset_in_child();
      bool fine = !planner.is_running();
      training.iterate();
      planner.start(plans_of(training), 1.0);
      training.iterate();
      training.iterate();
      fine &= planner.is_running() && training.holds_expected();
      planner.stop();
      _exit(fine ? 0 : 1);
    }
    planner.unlock_in_parent();
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  training.iterate();
  EXPECT_TRUE(training.holds_expected());
}

} // namespace
} // namespace c10::remat
