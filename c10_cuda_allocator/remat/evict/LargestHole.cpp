#include "LargestHole.h"

#include <algorithm>

namespace c10::remat {

namespace {

bool can_be_freed(const EngineState& state, const BlockView& block) {
  if (block.free || block.owner == nullptr) {
    return block.free;
  }
  const VersionId id = state.storage.version_of(block.owner);
  return id && state.graph.is_evictable(id) &&
      state.graph[id].reservations == 0;
}

} // namespace

Bytes largest_hole(const EngineState& state) {
  Bytes largest = 0;
  for (const SegmentView& segment : state.device.segments(MemoryRequest{})) {
    Bytes hole = 0;
    for (const BlockView& block : segment.blocks) {
      hole = can_be_freed(state, block) ? hole + block.size : 0;
      largest = std::max(largest, hole);
    }
  }
  return largest;
}

} // namespace c10::remat
