#include "PlanSearch.h"
#include "Planner.h"
#include "SimPorts.h"
#include "Simulation.h"

#include "../Errors.h"
#include "../policy/PlannedPolicy.h"
#include "../policy/PolicyRegistry.h"

#include <algorithm>
#include <memory>

namespace c10::remat {

namespace {

using Kind = Workload::Step::Kind;
using Outcome = SimulationResult::Outcome;

// Tells the engine of a workload what capture would. Views are no ops for it.
class EngineRuntime {
 public:
  EngineRuntime(
      const Workload& workload,
      std::unique_ptr<EvictionPolicy> policy,
      Bytes budget,
      const SimulationLimits& limits)
      : workload_(workload),
        ports_(budget),
        engine_(config(budget), std::move(policy), ports_, ports_, ports_),
        holders_(workload.size_of.size()),
        references_(workload.size_of.size()) {
    ports_.engine = &engine_;
    result_.base_cost = workload.cost();
    most_recompute_ =
        limits.most_recompute < 0 ? result_.base_cost : limits.most_recompute;
    ports_.recompute_allowed = most_recompute_;
    ports_.may_go_on = limits.may_go_on;
  }

  // Makes the plans that the policy asks for, in no time.
  void open_plans() {
    plans_ = engine_.plan_exchange();
    plans_->open();
  }

  SimulationResult run() {
    CostNs ran = 0;
    try {
      for (const Workload::Step& step : workload_.steps) {
        ports_.check_interrupted();
        this->step(step);
        ran += step.cost;
        check_thrashing();
        if (plans_ != nullptr) {
          make_plans();
        }
      }
      if (workload_.ends_resident) {
        hold_references();
      }
    } catch (const DeviceFull&) {
      result_.outcome = Outcome::OutOfMemory;
    } catch (const WorkingSetTooLarge&) {
      result_.outcome = Outcome::OutOfMemory;
    } catch (const Thrashing&) {
      result_.outcome = Outcome::Thrashed;
    } catch (const Interrupted&) {
      result_.outcome = Outcome::Interrupted;
    }
    const Counters counters = engine_.counters();
    result_.recompute = counters.recompute_ns;
    result_.elapsed = ran + counters.recompute_ns;
    result_.evictions = counters.evictions;
    result_.replays = counters.replays;
    result_.deepest_replay = counters.deepest_replay;
    result_.peak = ports_.peak();
    result_.peak_place = ports_.peak_place();
    return result_;
  }

 private:
  static Config config(Bytes budget) {
    Config config;
    config.budget = budget;
    return config;
  }

  void make_plans() {
    if (const auto request = plans_->poll()) {
      if (auto answer = search_plan(*request)) {
        plans_->answer(std::move(*answer));
      }
    }
  }

  void check_thrashing() const {
    if (engine_.recompute_cost() > most_recompute_) {
      throw Thrashing("replays take too long");
    }
  }

  void step(const Workload::Step& step) {
    const Workload::Storage storage =
        step.kind == Kind::Op ? 0 : workload_.storage_of[step.tensor];
    switch (step.kind) {
    case Kind::Constant:
      ports_.allocate(workload_.size_of[storage]);
      holders_[storage] = ports_.make_holder(workload_.size_of[storage], true);
      engine_.add_leaf(workload_.size_of[storage], holders_[storage]);
      ++references_[storage];
      break;
    case Kind::Op:
      op(step);
      break;
    case Kind::Retain:
      ++references_[storage];
      break;
    case Kind::Release:
      if (--references_[storage] == 0) {
        engine_.storage_died(holders_[storage]->version);
        holders_[storage] = nullptr;
      }
      break;
    case Kind::Access: {
      const VersionId id = holders_[storage]->version;
      engine_.ensure_resident(id);
      engine_.unpin(id);
      break;
    }
    case Kind::LeafWrite:
    case Kind::ParameterWrite:
      write_leaf(step.kind, holders_[storage]);
      break;
    }
  }

  // As an op that writes over all of it and cannot be replayed.
  void write_leaf(Kind kind, Holder* holder) {
    OpCapture capture;
    Write write;
    write.overwrites_all = true;
    write.is_parameter = kind == Kind::ParameterWrite;
    capture.writes = {write};
    engine_.begin_op({holder}, capture.inputs, capture.writes);
    engine_.end_op(std::move(capture));
  }

  void op(const Workload::Step& step) {
    // By storage, for views share one.
    std::vector<Workload::Storage> fresh;
    std::vector<Workload::Storage> written; // by overwrite, what results
    std::vector<Workload::Storage> operands;
    for (uint32_t i = 0; i < step.outputs.size(); ++i) {
      const Workload::Storage storage = workload_.storage_of[step.outputs[i]];
      const bool is_written = std::any_of(
          step.overwrites.begin(),
          step.overwrites.end(),
          [&](const Workload::Overwrite& each) { return each.output == i; });
      if (++references_[storage] == 1 && !is_written) {
        fresh.push_back(storage);
      }
    }
    if (fresh.empty() && step.overwrites.empty() && step.is_recorded &&
        !step.outputs.empty()) {
      return; // makes views
    }
    for (uint32_t i = 0; i < step.inputs.size(); ++i) {
      const Workload::Storage storage = workload_.storage_of[step.inputs[i]];
      const bool is_overwritten = std::any_of(
          step.overwrites.begin(),
          step.overwrites.end(),
          [&](const Workload::Overwrite& each) {
            return workload_.storage_of[step.inputs[each.input]] == storage;
          });
      if (!is_overwritten &&
          std::find(operands.begin(), operands.end(), storage) ==
              operands.end()) {
        operands.push_back(storage);
      }
    }
    Holders holders;
    for (const Workload::Storage storage : operands) {
      holders.push_back(holders_[storage]);
    }
    OpCapture capture;
    for (const Workload::Overwrite& each : step.overwrites) {
      const Workload::Storage from =
          workload_.storage_of[step.inputs[each.input]];
      holders.push_back(holders_[from]);
      capture.writes.push_back({VersionId{}});
      written.push_back(workload_.storage_of[step.outputs[each.output]]);
      holders_[written.back()] = std::exchange(holders_[from], nullptr);
      references_[from] = 0;
    }
    engine_.begin_op(holders, capture.inputs, capture.writes);
    for (const Workload::Storage storage : fresh) {
      ports_.allocate(workload_.size_of[storage]);
      holders_[storage] = ports_.make_holder(workload_.size_of[storage], true);
      capture.fresh.push_back({workload_.size_of[storage], holders_[storage]});
    }
    capture.cost = step.cost;
    capture.signature = ++last_signature_; // costs are exact, each its own
    capture.name = step.name.c_str();
    if (step.is_recorded) {
      capture.payload = payload_;
    }
    engine_.end_op(std::move(capture));
    ++ports_.place;
  }

  void hold_references() {
    for (Workload::Storage i = 0; i < holders_.size(); ++i) {
      if (references_[i] > 0) {
        engine_.ensure_resident(holders_[i]->version);
        check_thrashing();
      }
    }
  }

  const Workload& workload_;
  SimPorts ports_;
  Engine engine_;
  std::shared_ptr<PlanExchange> plans_; // null: nobody makes any
  std::vector<Holder*> holders_; // by storage; what the program holds
  std::vector<uint32_t> references_; // by storage
  const std::shared_ptr<OpPayload> payload_ = std::make_shared<OpPayload>();
  uint64_t last_signature_ = 0;
  CostNs most_recompute_ = 0;
  SimulationResult result_;
};

} // namespace

SimulationResult simulate(
    const Workload& workload,
    const std::string& policy,
    Bytes budget) {
  if (policy == "planned") {
    return Planner(workload, budget).improve().result;
  }
  return simulate(workload, make_policy(policy), budget);
}

SimulationResult simulate(
    const Workload& workload,
    std::unique_ptr<EvictionPolicy> policy,
    Bytes budget,
    const SimulationLimits& limits) {
  return EngineRuntime(workload, std::move(policy), budget, limits).run();
}

SimulationResult simulate_learning(const Workload& workload, Bytes budget) {
  EngineRuntime runtime(
      workload, std::make_unique<PlannedPolicy>(), budget, SimulationLimits{});
  runtime.open_plans();
  return runtime.run();
}

} // namespace c10::remat
