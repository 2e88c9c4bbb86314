#include "Evictor.h"

#include "WindowChooser.h"

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
    if (is_in_use(graph[victim])) {
      state_.evict(victim);
    } else {
      state_.release_bytes(victim);
    }
  }
  return freed;
}

// Note [The price of a window]
// What evicting a block costs is its score, which policies give per byte, times
// its bytes. Versions that a replay under way will read are left alone here, as
// they are in VictimIndex::choose.
Bytes Evictor::evict_windows(
    const MemoryRequest& request,
    const std::vector<SegmentView>& segments,
    bool allow_locked) noexcept {
  const OpGraph& graph = state_.graph;
  const auto version_of = [&](const BlockView& block) {
    return block.owner == nullptr ? VersionId{}
                                  : state_.storage.version_of(block.owner);
  };
  const auto price = [&](const BlockView& block) {
    if (block.free) {
      return 0.0;
    }
    const VersionId id = version_of(block);
    if (!id || !graph.is_evictable(id) || graph[id].reservations != 0 ||
        (!allow_locked && state_.policy->is_locked(graph, id))) {
      return PricedBlock::kBlocked;
    }
    return state_.index->score(id, state_.now) *
        static_cast<double>(graph[id].size);
  };
  std::vector<PricedSegment> priced;
  for (const SegmentView& segment : segments) {
    PricedSegment& entry = priced.emplace_back();
    entry.serves_request = segment.serves_request;
    entry.releasable = segment.releasable;
    for (const BlockView& block : segment.blocks) {
      entry.blocks.push_back({block.size, price(block)});
    }
  }
  Bytes freed = 0;
  for (const Window& window :
       choose_windows(priced, request.size, request.shortage)) {
    for (size_t i = window.first; i < window.end; ++i) {
      const BlockView& block = segments[window.segment].blocks[i];
      if (!block.free) {
        state_.evict(version_of(block));
        freed += block.size;
      }
    }
  }
  return freed;
}

Bytes Evictor::evict_for(const MemoryRequest& request) noexcept {
  const std::vector<SegmentView> segments = state_.device.segments(request);
  const uint64_t before = state_.counters.evictions;
  Bytes freed = 0;
  for (const bool allow_locked : {false, true}) {
    freed = freed > 0 ? freed : evict_windows(request, segments, allow_locked);
  }
  if (freed == 0) {
    freed = evict_bytes(std::max(request.shortage, Bytes{1}));
  }
  if (request.unused >= request.size) {
    state_.counters.fragmentation_evictions +=
        state_.counters.evictions - before;
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
