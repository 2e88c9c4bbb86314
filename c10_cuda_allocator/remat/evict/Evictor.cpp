#include "Evictor.h"

#include <algorithm>
#include <vector>

namespace c10::remat {

Bytes Evictor::evict_bytes(Bytes wanted) noexcept {
  Bytes freed = 0;
  for (const bool allow_locked : {false, true}) {
    while (freed < wanted) {
      const VersionId victim = state_.index->choose(state_.now, allow_locked);
      if (!victim) {
        break;
      }
      freed += state_.graph[victim].size;
      state_.evict(victim);
    }
  }
  return freed < wanted ? freed + evict_reserved(wanted - freed) : freed;
}

// Note [Evicting what a replay will read]
// A replay that does not fit beside what it reserved can still go on if some of
// that is given back and replayed again when its turn comes, a detour. The next
// uses are known, so the choice is Belady's: what is used last goes first. Rare
// enough for a look at everything.
Bytes Evictor::evict_reserved(Bytes wanted) noexcept {
  OpGraph& graph = state_.graph;
  std::vector<VersionId> candidates;
  graph.for_each_version([&](VersionId id) {
    const StorageVersion& version = graph[id];
    if (version.reservations != 0 && version.resident && version.pins == 0 &&
        version.user_pins == 0 && !version.escaped && version.producer) {
      candidates.push_back(id);
    }
  });
  std::sort(
      candidates.begin(), candidates.end(), [&](VersionId a, VersionId b) {
        return graph[a].next_use > graph[b].next_use;
      });
  Bytes freed = 0;
  for (const VersionId victim : candidates) {
    if (freed >= wanted) {
      break;
    }
    freed += graph[victim].size;
    if (graph[victim].owned) {
      state_.evict(victim);
    } else {
      state_.release_bytes(victim);
    }
  }
  return freed;
}

Bytes Evictor::evict_all() noexcept {
  std::vector<VersionId> victims;
  state_.graph.for_each_version([&](VersionId id) {
    if (state_.graph.is_evictable(id) && state_.graph[id].reservations == 0) {
      victims.push_back(id);
    }
  });
  Bytes freed = 0;
  for (const VersionId victim : victims) {
    freed += state_.graph[victim].size;
    state_.evict(victim);
  }
  return freed;
}

} // namespace c10::remat
