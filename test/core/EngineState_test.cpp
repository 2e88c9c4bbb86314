#include "SimDevice.h"

#include <c10/remat/EngineState.h>
#include <gtest/gtest.h>

namespace c10::remat {
namespace {

// Remembers what it was last told.
struct ListeningPolicy final : EvictionPolicy {
  const char* name() const override {
    return "listening";
  }
  double weight(const OpGraph& /*graph*/, VersionId /*id*/) const override {
    return 1;
  }
  void on_residual(Bytes residual, Bytes budget) override {
    last_residual = residual;
    last_budget = budget;
  }
  Bytes last_residual = 1;
  Bytes last_budget = 1;
};

Bytes residual_reported(Bytes usage, Bytes budget) {
  SimDevice device(/*capacity=*/1 << 20);
  device.used = usage;
  Config config;
  config.budget = budget;
  auto policy = std::make_unique<ListeningPolicy>();
  const ListeningPolicy& listening = *policy;
  EngineState state(config, std::move(policy), device, device, device);
  state.report_residual();
  device.used = 0;
  EXPECT_EQ(listening.last_budget, budget);
  return listening.last_residual;
}

TEST(EngineStateTest, ReportsTheFreePartOfTheBudget) {
  EXPECT_EQ(residual_reported(/*usage=*/300, /*budget=*/1000), 700U);
  EXPECT_EQ(residual_reported(/*usage=*/1200, /*budget=*/1000), 0U);
  EXPECT_EQ(
      residual_reported(/*usage=*/300, Config::kUnlimited), Config::kUnlimited);
}

} // namespace
} // namespace c10::remat
