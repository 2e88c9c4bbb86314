#include "SimProgram.h"

#include <c10/remat/Errors.h>
#include <c10/remat/policy/PolicyRegistry.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>

namespace c10::remat {
namespace {

struct Command {
  enum Kind {
    Leaf,
    Op,
    Write,
    Overwrite,
    FailingOp,
    UnreplayableOp,
    Read,
    FailingRead,
    Evict,
    EvictAll,
    Drop,
    PinByUser,
    UnpinByUser,
    Escape,
    Resize,
    Retire,
    kKinds,
  };
  Kind kind;
  uint32_t which; // of the program's storages
  uint32_t seed; // for what else there is to choose
};

// Runs commands against an engine on a device too small for them. Running out
// of memory is a fair answer to any; being left in a wrong state is not.
class RandomProgram {
 public:
  RandomProgram(Config config, Bytes capacity)
      : program_(capacity, std::move(config)) {}

  void apply(const Command& command) {
    try {
      run(command);
    } catch (const SimOutOfMemory&) {
      ++out_of_memory;
    } catch (const WorkingSetTooLarge&) {
      ++out_of_memory;
    } catch (const SimOpFailed&) {
    }
    program_.device.fail_replay_in = 0;
    program_.check_invariants();
  }

  // With memory enough, all must be as the model says, and nothing be left
  // when all is dropped.
  void finish() {
    program_.device.capacity = 1 << 30;
    for (const Var var : program_.vars()) {
      ASSERT_TRUE(program_.holds_expected(var));
    }
    for (const Var var : program_.vars()) {
      program_.drop(var);
      program_.check_invariants();
    }
    ASSERT_EQ(program_.device.used, 0U);
    ASSERT_EQ(program_.device.holders.size(), 0U);
    ASSERT_EQ(program_.engine.census().storages, 0U);
    ASSERT_EQ(program_.engine.census().op_records, 0U);
  }

  uint64_t out_of_memory = 0;

 private:
  using Var = SimProgram::Var;

  void run(const Command& command) {
    std::mt19937 random(command.seed);
    const std::vector<Var> vars = program_.vars();
    if (vars.size() < 3 || command.kind == Command::Leaf) {
      program_.leaf(1 + random() % 40);
      return;
    }
    const Var var = vars[command.which % vars.size()];
    const auto any = [&] { return vars[random() % vars.size()]; };
    SimProgram::OpSpec spec;
    spec.cost = 1 + random() % 100;
    for (uint32_t i = 0; i < random() % 3; ++i) {
      add_once(spec.inputs, any());
    }
    switch (command.kind) {
    case Command::Op:
    case Command::UnreplayableOp:
      add_once(spec.inputs, var);
      for (uint32_t i = 0; i <= random() % 3; ++i) {
        spec.fresh.push_back(1 + random() % 40);
      }
      spec.replayable = command.kind == Command::Op;
      program_.op(spec);
      break;
    case Command::Write:
    case Command::FailingOp:
      spec.writes = {var};
      if (const Var other = any(); other != var && random() % 3 == 0) {
        spec.overwrites = {other};
      }
      if (random() % 3 == 0) {
        spec.fresh = {1 + random() % 40};
      }
      spec.fails = command.kind == Command::FailingOp;
      program_.op(spec);
      break;
    case Command::Overwrite:
      spec.overwrites = {var};
      program_.op(spec);
      break;
    case Command::FailingRead:
      program_.device.fail_replay_in = 1 + random() % 4;
      ASSERT_TRUE(program_.holds_expected(var));
      break;
    case Command::Evict:
      program_.evict(var);
      break;
    case Command::EvictAll:
      program_.engine.evict_all();
      break;
    case Command::Drop:
      program_.drop(var);
      pinned_.erase(var);
      break;
    case Command::PinByUser:
      if (program_.is_resident(var) && random() % 4 == 0) {
        program_.engine.pin_by_user(program_.id(var));
        ++pinned_[var];
      }
      break;
    case Command::UnpinByUser:
      if (!pinned_.empty()) {
        const auto first = pinned_.begin();
        program_.engine.unpin_by_user(program_.id(first->first));
        if (--first->second == 0) {
          pinned_.erase(first);
        }
      }
      break;
    case Command::Escape:
      if (random() % 8 == 0) {
        program_.escape(var, random() % 2 == 0);
      }
      break;
    case Command::Resize:
      if (const Bytes capacity = 100 + random() % 900;
          capacity >= program_.device.used) {
        program_.device.capacity = capacity;
      }
      break;
    case Command::Retire:
      if (random() % 16 == 0) {
        program_.engine.retire();
      }
      break;
    default:
      ASSERT_TRUE(program_.holds_expected(var));
      break;
    }
  }

  static void add_once(std::vector<Var>& to, Var var) {
    if (std::find(to.begin(), to.end(), var) == to.end()) {
      to.push_back(var);
    }
  }

  SimProgram program_;
  std::map<Var, uint32_t> pinned_;
};

class RandomEngineTest
    : public testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(RandomEngineTest, HoldsWhatTheModelSays) {
  Config config;
  config.policy = std::get<0>(GetParam());
  config.chaos = std::get<1>(GetParam());
  config.longest_history = 8;
  config.budget = 1000;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    RandomProgram program(config, 200 + random() % 800);
    for (int step = 0; step < 400; ++step) {
      const Command command{
          static_cast<Command::Kind>(random() % Command::kKinds),
          static_cast<uint32_t>(random()),
          static_cast<uint32_t>(random())};
      ASSERT_NO_THROW(program.apply(command))
          << "step " << step << ", command " << command.kind;
      if (HasFatalFailure()) {
        FAIL() << "step " << step << ", command " << command.kind;
      }
    }
    ASSERT_NO_THROW(program.finish());
    if (HasFatalFailure()) {
      return;
    }
  }
}

std::vector<std::string> all_policies() {
  std::vector<std::string> names = policy_names();
  names.emplace_back(KeepingPolicy::kName);
  return names;
}

INSTANTIATE_TEST_SUITE_P(
    All,
    RandomEngineTest,
    testing::Combine(testing::ValuesIn(all_policies()), testing::Bool()),
    [](const auto& info) {
      return std::get<0>(info.param) +
          (std::get<1>(info.param) ? "_chaos" : "");
    });

} // namespace
} // namespace c10::remat
