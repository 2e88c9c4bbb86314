#include "LargestHole.h"

#include <algorithm>

namespace c10::remat {

Bytes largest_hole(const EngineState& state) {
  Bytes largest = 0;
  for (const SegmentView& segment : state.device.segments(MemoryRequest{})) {
    Bytes hole = 0;
    for (const BlockView& block : segment.blocks) {
      if (block.free || state.spare_in(block)) {
        hole += block.size;
      } else if (!block.slides || !state.movable_in(block)) {
        hole = 0;
      }
      largest = std::max(largest, hole);
    }
  }
  return largest;
}

} // namespace c10::remat
