#include <c10/remat/CostTable.h>

#include <gtest/gtest.h>

namespace c10::remat {
namespace {

TEST(CostTableTest, KeepsTheLeastOfTheFirstMeasurements) {
  CostTable costs;
  EXPECT_EQ(costs.update(1, 30), 30);
  EXPECT_EQ(costs.update(1, 20), 20);
  EXPECT_EQ(costs.update(1, 40), 20);
  for (uint32_t i = 3; i < CostTable::kSamples; ++i) {
    costs.update(1, 50);
  }
  EXPECT_EQ(costs.update(1, 10), 20);
}

TEST(CostTableTest, AnEstimateCountsUntilTheFirstMeasurement) {
  CostTable costs;
  EXPECT_EQ(costs.update(1, 0), 1);
  EXPECT_EQ(costs.update(1, 0, 500), 500);
  EXPECT_EQ(costs.update(1, 0), 500); // not estimated every time
  EXPECT_EQ(costs.update(1, 700), 700);
  EXPECT_EQ(costs.update(1, 0, 500), 700);
}

} // namespace
} // namespace c10::remat
