#pragma once

#include "../Export.h"
#include "../graph/OpGraph.h"

#include <vector>

namespace c10::remat {

// The op records to run, in the order of their first execution, so that the
// missing versions among `targets` become resident.
//
// Note [Replay in program order]
// Ops run in the order in which the program ran them. Parents then come before
// children, each op runs once however many need it, and, which no other
// topological order gives for free, all readers of a storage's version run
// before the op that overwrites it.
struct ReplayPlan {
  std::vector<OpId> ops;
};

// Iterative: depth is bounded by memory, not by the native stack.
REMAT_API ReplayPlan
make_replay_plan(const OpGraph& graph, const std::vector<VersionId>& targets);

} // namespace c10::remat
