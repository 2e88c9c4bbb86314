#pragma once

#include "Export.h"
#include "graph/OpGraph.h"

#include <vector>

namespace c10::remat {

// The versions that replay makes from `id`, directly or through intermediates
// whose bytes are not there: the first that hold bytes or that a storage owns
// on every path.
struct Dependents {
  std::vector<VersionId> resident;
  std::vector<VersionId> evicted;
};

REMAT_API Dependents find_dependents(const OpGraph& graph, VersionId id);

} // namespace c10::remat
