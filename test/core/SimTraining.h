#pragma once

#include "SimProgram.h"

#include <vector>

namespace c10::remat {

// A program that trains: iterations of a chain of ops that is read backwards,
// each followed by an update of its parameters.
class SimTraining {
 public:
  using Var = SimProgram::Var;
  static constexpr Bytes kSize = 8;

  // Room for `values` of a chain at a time.
  explicit SimTraining(Bytes values, const std::string& policy = "planned")
      : program(64 * kSize, config(values, policy)) {
    for (int i = 0; i < 2; ++i) {
      parameters_.push_back(program.leaf(kSize));
    }
    set_room(values);
  }

  void set_room(Bytes values) {
    const Bytes budget = (values + 4) * kSize;
    program.engine.set_budget(budget);
    program.device.capacity = budget;
  }

  // Costs differ, so that which values are evicted matters.
  void iterate(int length = 24) {
    std::vector<Var> values{parameters_[0]};
    for (int i = 0; i < length; ++i) {
      values.push_back(program.op1({values.back()}, kSize, 10 + 37 * (i % 5)));
    }
    Var gradient = program.op1({values.back()}, kSize);
    for (; values.size() > 1; values.pop_back()) {
      const Var next = program.op1({gradient, values.back()}, kSize);
      program.drop(gradient);
      gradient = next;
      program.drop(values.back());
    }
    for (const Var parameter : parameters_) {
      SimProgram::OpSpec update;
      update.inputs = {gradient};
      update.updates = {parameter};
      program.op(update);
    }
    program.drop(gradient);
  }

  // What one iteration recomputes.
  CostNs recompute(int length = 24) {
    const CostNs before = program.engine.recompute_cost();
    iterate(length);
    return program.engine.recompute_cost() - before;
  }

  bool holds_expected() {
    return program.holds_expected(parameters_[0]) &&
        program.holds_expected(parameters_[1]);
  }

  SimProgram program;

 private:
  static Config config(Bytes values, const std::string& policy) {
    Config config;
    config.budget = (values + 4) * kSize;
    config.policy = policy;
    return config;
  }

  std::vector<Var> parameters_;
};

} // namespace c10::remat
