#include "../SimProgram.h"

#include <gtest/gtest.h>

namespace c10::remat {
namespace {

using Var = SimProgram::Var;

// A device whose storages lie side by side, in two segments.
void lay_out(SimProgram& program, size_t in_first) {
  program.device.list_segments = [&program, in_first](const MemoryRequest&) {
    std::vector<SegmentView> segments(2);
    size_t place = 0;
    for (const auto& holder : program.device.holders) {
      BlockView block;
      block.size = holder->size;
      block.owner = holder.get();
      block.free = !holder->value;
      block.slides = true;
      segments[place++ < in_first ? 0 : 1].blocks.push_back(block);
    }
    return segments;
  };
}

TEST(LargestHoleTest, IsWhatNeighborsMakeTogether) {
  SimProgram program(/*capacity=*/1 << 20);
  const Var leaf = program.leaf(10);
  std::vector<Var> made;
  for (int i = 0; i < 7; ++i) {
    made.push_back(program.op1({leaf}, 100));
  }
  lay_out(program, 5); // the leaf and four; three
  EXPECT_EQ(program.engine.census().largest_hole, 400U);
  program.engine.pin_by_user(program.id(made[1]));
  EXPECT_EQ(program.engine.census().largest_hole, 300U); // the second segment
  program.engine.pin_by_user(program.id(made[5]));
  EXPECT_EQ(program.engine.census().largest_hole, 200U);
  EXPECT_TRUE(program.engine.evict(program.id(made[2])));
  EXPECT_EQ(program.engine.census().largest_hole, 200U); // free counts, too
}

TEST(LargestHoleTest, ReachesOverWhatSlides) {
  SimProgram program(/*capacity=*/1 << 20);
  program.leaf(100, /*is_gradient=*/true);
  program.op1({}, 100);
  const Var between = program.leaf(100, /*is_gradient=*/true);
  program.op1({}, 100);
  lay_out(program, 4);
  EXPECT_EQ(program.engine.census().largest_hole, 200U);
  program.engine.pin_by_user(program.id(between));
  EXPECT_EQ(program.engine.census().largest_hole, 100U);
}

TEST(LargestHoleTest, IsNoneWithoutNeighbors) {
  SimProgram program(/*capacity=*/1 << 20);
  program.op1({program.leaf(10)}, 100);
  EXPECT_EQ(program.engine.census().largest_hole, 0U);
}

} // namespace
} // namespace c10::remat
