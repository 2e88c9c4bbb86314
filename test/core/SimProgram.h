#pragma once

#include "SimDevice.h"

#include <c10/remat/policy/PolicyRegistry.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace c10::remat {

// Evicts the stalest, and keeps every intermediate that a replay has made.
class KeepingPolicy final : public EvictionPolicy {
 public:
  static constexpr const char* kName = "keeping";

  const char* name() const override {
    return kName;
  }
  double weight(const OpGraph& /*graph*/, VersionId /*id*/) const override {
    return 1;
  }
  bool keeps(const OpGraph& graph, VersionId id, bool /*was_replayed*/)
      const override {
    return !graph[id].readers.empty();
  }
};

// A program on a SimDevice, and the naive model beside it: what each of its
// storages must hold, computed without any eviction.
class SimProgram {
 public:
  // What the program knows a storage by; never reused.
  using Var = uint32_t;

  struct OpSpec {
    std::vector<Var> inputs;
    std::vector<Bytes> fresh;
    std::vector<Var> writes; // parts of them
    std::vector<Var> overwrites; // all of them
    std::vector<Var> updates; // parameters: all of them
    CostNs cost = 10;
    bool replayable = true;
    bool fails = false;
    std::function<void()> meanwhile; // what another thread does while it runs
  };

  explicit SimProgram(Bytes capacity, Config config = {})
      : SimProgram(capacity, policy_of(config), config) {}
  SimProgram(
      Bytes capacity,
      std::unique_ptr<EvictionPolicy> policy,
      Config config = {})
      : device(capacity),
        engine(config, std::move(policy), device, device, device) {
    device.engine = &engine;
  }

  Var leaf(Bytes size, bool is_gradient = false) {
    device.allocate(size);
    const uint64_t value = mix(next_tag_++, 7);
    SimHolder* holder = device.make_holder(size, value);
    return bind(engine.add_leaf(size, holder, is_gradient), holder, value);
  }

  // Runs an op as capture does. Returns the fresh storages.
  std::vector<Var> op(const OpSpec& spec) {
    Holders operands;
    VersionIds inputs;
    for (const Var input : spec.inputs) {
      operands.push_back(at(input).holder);
    }
    Writes writes;
    for (const Var var : spec.writes) {
      operands.push_back(at(var).holder);
      writes.push_back({VersionId{}, /*overwrites_all=*/false});
    }
    for (const Var var : spec.overwrites) {
      operands.push_back(at(var).holder);
      writes.push_back({VersionId{}, /*overwrites_all=*/true});
    }
    for (const Var var : spec.updates) {
      operands.push_back(at(var).holder);
      Write update;
      update.overwrites_all = true;
      update.is_parameter = true;
      writes.push_back(update);
    }
    engine.begin_op(operands, inputs, writes);
    if (spec.meanwhile) {
      spec.meanwhile();
    }

    OpCapture capture;
    const uint64_t tag = next_tag_++;
    std::vector<Var> written = spec.writes;
    written.insert(
        written.end(), spec.overwrites.begin(), spec.overwrites.end());
    written.insert(written.end(), spec.updates.begin(), spec.updates.end());
    std::vector<SimHolder*> holders;
    try {
      for (const Bytes size : spec.fresh) {
        device.allocate(size);
        holders.push_back(device.make_holder(size, 0));
        capture.fresh.push_back({size, holders.back()});
      }
      if (spec.fails) {
        throw SimOpFailed("made to fail");
      }
    } catch (...) {
      for (SimHolder* holder : holders) {
        discard(holder);
      }
      const auto ids = engine.abort_op(inputs, writes);
      for (size_t i = 0; i < written.size(); ++i) {
        // Written in part: what it holds then is what must stay.
        set(written[i], ids[i], mix(tag, 99));
      }
      throw;
    }

    // Reads, from the device and in the model.
    std::vector<Var> read = spec.inputs;
    for (const Var var : spec.writes) {
      if (std::find(read.begin(), read.end(), var) == read.end()) {
        read.push_back(var);
      }
    }
    std::vector<uint64_t> actual;
    std::vector<uint64_t> expected;
    for (const Var var : read) {
      actual.push_back(at(var).holder->value.value());
      expected.push_back(at(var).expected);
    }
    size_t output = 0;
    for (SimHolder* holder : holders) {
      holder->value = op_value(tag, output++, actual);
    }
    for (const Var var : written) {
      at(var).holder->value = op_value(tag, output++, actual);
    }

    capture.inputs = inputs;
    capture.writes = writes;
    capture.cost = spec.cost;
    capture.signature = static_cast<uint64_t>(spec.cost);
    if (spec.replayable) {
      capture.payload = std::make_shared<SimPayload>(tag);
    } else {
      capture.not_replayable = "test";
    }
    const auto ids = engine.end_op(std::move(capture));
    output = 0;
    std::vector<Var> made;
    for (SimHolder* holder : holders) {
      made.push_back(
          bind(ids[output], holder, op_value(tag, output, expected)));
      ++output;
    }
    for (const Var var : written) {
      at(var).id = ids[output];
      at(var).expected = op_value(tag, output, expected);
      ++output;
    }
    return made;
  }

  Var op1(std::vector<Var> inputs, Bytes size, CostNs cost = 10) {
    OpSpec spec;
    spec.inputs = std::move(inputs);
    spec.fresh = {size};
    spec.cost = cost;
    return op(spec)[0];
  }
  void write(Var var, std::vector<Var> inputs = {}) {
    OpSpec spec;
    spec.inputs = std::move(inputs);
    spec.writes = {var};
    op(spec);
  }

  // Is what the device holds what the model says? Brings it back if need be.
  bool holds_expected(Var var) {
    const VersionId id = at(var).id;
    engine.ensure_resident(id);
    const bool same = at(var).holder->value == at(var).expected;
    engine.unpin(id);
    return same;
  }

  // The program's last reference goes.
  void drop(Var var) {
    const VersionId id = at(var).id;
    vars_.erase(var);
    engine.storage_died(id);
  }

  void escape(Var var, bool for_good) {
    at(var).id = engine.escape(at(var).holder, for_good);
  }

  VersionId id(Var var) {
    return at(var).id;
  }
  bool is_resident(Var var) {
    return engine.is_resident(at(var).id);
  }
  bool evict(Var var) {
    return engine.evict(at(var).id);
  }
  std::vector<Var> vars() const {
    std::vector<Var> all;
    for (const auto& [var, state] : vars_) {
      all.push_back(var);
    }
    return all;
  }

  // The engine's records, and the device's bytes against them.
  void check_invariants() {
    engine.check_invariants();
    Bytes held = 0;
    for (const auto& holder : device.holders) {
      held += holder->value ? holder->size : 0;
    }
    REMAT_ASSERT(held == device.used);
    const Census census = engine.census();
    REMAT_ASSERT(census.resident + census.held == held);
    REMAT_ASSERT(device.used <= device.capacity);
    for (auto& [var, state] : vars_) {
      REMAT_ASSERT(
          state.holder->value.has_value() == engine.is_resident(state.id));
      REMAT_ASSERT(
          !state.holder->value || *state.holder->value == state.expected);
    }
  }

  SimDevice device;
  Engine engine;

 private:
  struct State {
    VersionId id;
    SimHolder* holder;
    uint64_t expected;
  };

  static std::unique_ptr<EvictionPolicy> policy_of(const Config& config) {
    if (config.policy == KeepingPolicy::kName) {
      return std::make_unique<KeepingPolicy>();
    }
    return make_policy(config.policy.empty() ? "dtr" : config.policy);
  }

  State& at(Var var) {
    return vars_.at(var);
  }
  Var bind(VersionId id, SimHolder* holder, uint64_t expected) {
    vars_[next_var_] = {id, holder, expected};
    return next_var_++;
  }
  void set(Var var, VersionId id, uint64_t value) {
    at(var).id = id;
    at(var).holder->value = value;
    at(var).expected = value;
  }
  void discard(SimHolder* holder) {
    device.used -= holder->size;
    auto& all = device.holders;
    all.erase(std::find_if(all.begin(), all.end(), [&](const auto& each) {
      return each.get() == holder;
    }));
  }

  std::map<Var, State> vars_;
  Var next_var_ = 0;
  uint64_t next_tag_ = 1;
};

} // namespace c10::remat
