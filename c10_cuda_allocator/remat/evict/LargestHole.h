#pragma once

#include "../EngineState.h"

namespace c10::remat {

// The most neighboring bytes of the device that are free or could be evicted
// now: no larger allocation is possible without a new segment. 0 where storages
// have no neighbors. Needs the engine's lock.
Bytes largest_hole(const EngineState& state);

} // namespace c10::remat
