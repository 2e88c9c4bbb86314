#pragma once

#include "graph/OpGraph.h"

namespace c10::remat {

// The versions that replay makes from `id`, directly or through intermediates
// whose bytes are not there or are being written over: the first that hold
// bytes or that a storage owns on every path.
struct Dependents {
  VersionIds resident;
  VersionIds evicted;
};

Dependents find_dependents(const OpGraph& graph, VersionId id);

} // namespace c10::remat
