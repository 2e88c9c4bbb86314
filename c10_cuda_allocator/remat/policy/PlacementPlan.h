#pragma once

#include "../Ids.h"
#include "../graph/InlineVector.h"

namespace c10::remat {

// What a plan says of the evictable bytes of an op.
//
// Note [Two ends]
// A window holds what was made together. Where a plan evicts some values and
// keeps their neighbors, a window has to take both, and chains of values that
// need each other. So what is made until the moment of most memory and is never
// evicted lies at the upper end of the memory, as a stack, since it is let go
// of in the reverse order of its making. Everything else lies as low as it can:
// what is in a window there is to be let go of anyway
// (EvictionPolicy::lets_go), and costs nothing. Where the two meet, what stays
// takes the uppermost window of those that cost the same.
//
// (Coop, too, has two ends, for what is cheap and what is dear to make again.)
struct PlacementPlan {
  bool exists = false;
  InlineVector<Bytes, 2> staying; // sizes of what stays of what the op makes
};

} // namespace c10::remat
