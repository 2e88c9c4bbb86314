#include "Evictor.h"

#include <vector>

namespace c10::remat {

Bytes Evictor::evict_bytes(Bytes wanted) noexcept {
  Bytes freed = 0;
  for (const bool allow_reluctant : {false, true}) {
    while (freed < wanted) {
      const VersionId victim =
          state_.index->choose(state_.now, allow_reluctant);
      if (!victim) {
        break;
      }
      freed += state_.graph[victim].size;
      state_.evict(victim);
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
