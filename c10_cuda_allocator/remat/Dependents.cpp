#include "Dependents.h"

#include <unordered_set>

namespace c10::remat {

Dependents find_dependents(const OpGraph& graph, VersionId id) {
  Dependents found;
  std::unordered_set<OpId> seen;
  std::vector<VersionId> pending{id};
  while (!pending.empty()) {
    const VersionId next = pending.back();
    pending.pop_back();
    for (const OpId reader : graph[next].readers) {
      if (!seen.insert(reader).second) {
        continue;
      }
      for (const VersionId output : graph[reader].outputs) {
        if (!output) {
          continue;
        }
        const StorageVersion& version = graph[output];
        if (version.resident) {
          found.resident.push_back(output);
        } else if (version.owned) {
          found.evicted.push_back(output);
        } else {
          pending.push_back(output);
        }
      }
    }
  }
  return found;
}

} // namespace c10::remat
