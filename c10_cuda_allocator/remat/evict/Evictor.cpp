#include "Evictor.h"

#include <algorithm>
#include <vector>

namespace c10::remat {

namespace {

// Of what slides without need; see Note [Leaves settle].
constexpr Bytes kMostCopies = 16;

} // namespace

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
    if (version.reservations != 0 && version.resident &&
        is_unattached(version) && version.producer) {
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
//
// Where a free block elsewhere is large enough, a block can also be cleared by
// copying its bytes there. What that costs, in the same unit, is the same part
// of its price as copying takes of the time of the op that made it; a copy that
// would take longer is not made. So fragmentation makes nothing be computed
// again that is cheaper to move.
double Evictor::moving_share(
    const BlockView& block,
    VersionId id,
    Bytes largest_free) const noexcept {
  if (block.size > largest_free || !state_.policy->moves_blocks() ||
      state_.policy->lets_go(state_.graph, id)) {
    return 1;
  }
  const CostNs making = state_.graph[state_.graph[id].producer].cost;
  const CostNs copying = state_.device.copy_cost(block.size, block.size);
  return copying < making
      ? static_cast<double>(copying) / static_cast<double>(making)
      : 1;
}

double Evictor::price(
    const BlockView& block,
    Bytes largest_free,
    bool allow_locked) const noexcept {
  if (block.free) {
    return 0;
  }
  const VersionId id = state_.spare_in(block);
  if (!id || (!allow_locked && state_.policy->is_locked(state_.graph, id))) {
    return PricedBlock::kBlocked;
  }
  if (state_.policy->lets_go(state_.graph, id)) {
    return 0;
  }
  return state_.index->score(id, state_.now) *
      static_cast<double>(state_.graph[id].size) *
      moving_share(block, id, largest_free);
}

CostNs Evictor::clearing_ns(const BlockView& block, Bytes largest_free)
    const noexcept {
  if (block.free) {
    return 0;
  }
  const VersionId id = state_.version_in(block);
  if (state_.policy->lets_go(state_.graph, id)) {
    return 0;
  }
  return moving_share(block, id, largest_free) < 1
      ? state_.device.copy_cost(block.size, block.size)
      : state_.graph[state_.graph[id].producer].cost;
}

// Note [What sliding costs]
// Nobody knows the address of what is managed, unless it was handed out: not of
// evictable bytes, nor of leaves such as gradients and the state of an
// optimizer. So all of them can be copied by any distance, until the gaps of a
// window lie together. `per_ns` says what a nanosecond costs in the unit of
// prices: what the cheapest window without sliding costs over what clearing it
// takes. The distance is at least that of the last gap before.
void Evictor::price_slides(
    const Segments& segments,
    double per_ns,
    std::vector<PricedSegment>& priced) const noexcept {
  for (size_t number = 0; number < segments.size(); ++number) {
    const std::vector<BlockView>& blocks = segments[number].blocks;
    Bytes gap = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].free) {
        gap = blocks[i].size;
      } else if (blocks[i].slides && state_.movable_in(blocks[i])) {
        priced[number].blocks[i].slide_cost = per_ns *
            static_cast<double>(state_.device.copy_cost(
                blocks[i].size, gap == 0 ? blocks[i].size : gap));
      }
    }
  }
}

std::vector<Window> Evictor::choose(
    const MemoryRequest& request,
    const Segments& segments,
    Bytes largest_free,
    bool allow_locked) const noexcept {
  std::vector<PricedSegment> priced;
  std::vector<Window> everything;
  for (const SegmentView& segment : segments) {
    everything.push_back({priced.size(), 0, segment.blocks.size()});
    PricedSegment& entry = priced.emplace_back();
    entry.serves_request = segment.serves_request;
    entry.releasable = segment.releasable;
    for (const BlockView& block : segment.blocks) {
      entry.blocks.push_back(
          {block.size, price(block, largest_free, allow_locked)});
    }
  }
  WindowChoice cleared =
      choose_windows(priced, request.size, request.shortage, request.stays);
  if (!state_.policy->moves_blocks()) {
    return std::move(cleared.windows);
  }
  // Where nothing can be cleared, what clearing all that can be would cost.
  double price = 0;
  CostNs time = 0;
  for (const Window& window :
       cleared.windows.empty() ? everything : cleared.windows) {
    for (size_t i = window.first; i < window.end; ++i) {
      const double cost = priced[window.segment].blocks[i].cost;
      if (cost != PricedBlock::kBlocked) {
        price += cost;
        time += clearing_ns(segments[window.segment].blocks[i], largest_free);
      }
    }
  }
  const double per_ns =
      time > 0 && price > 0 ? price / static_cast<double>(time) : 1;
  price_slides(segments, per_ns, priced);
  return choose_windows(priced, request.size, request.shortage, request.stays)
      .windows;
}

Bytes Evictor::clear_windows(
    const MemoryRequest& request,
    const Segments& segments,
    bool allow_locked) noexcept {
  Bytes largest_free = 0;
  for (const SegmentView& segment : segments) {
    for (const BlockView& block : segment.blocks) {
      if (segment.takes_moves && block.free) {
        largest_free = std::max(largest_free, block.size);
      }
    }
  }
  const std::vector<Window> windows =
      choose(request, segments, largest_free, allow_locked);
  std::vector<AddressRange> cleared;
  for (const Window& window : windows) {
    AddressRange& range = cleared.emplace_back();
    range.end = segments[window.segment].address;
    for (size_t i = 0; i < window.end; ++i) {
      if (i == window.first) {
        range.begin = range.end;
      }
      range.end += segments[window.segment].blocks[i].size;
    }
  }
  Bytes freed = 0;
  for (const Window& window : windows) {
    const std::vector<BlockView>& blocks = segments[window.segment].blocks;
    for (size_t i = window.first; i < window.end; ++i) {
      const bool slides =
          std::binary_search(window.sliding.begin(), window.sliding.end(), i);
      if (!slides && !blocks[i].free) {
        freed += blocks[i].size;
        clear(blocks[i], largest_free, cleared);
      }
    }
    // From the lowest on, so that each finds the gaps before it in one.
    for (const size_t i : window.sliding) {
      freed += slide(blocks[i]) ? blocks[i].size : 0;
    }
  }
  return freed;
}

void Evictor::clear(
    const BlockView& block,
    Bytes largest_free,
    const std::vector<AddressRange>& avoided) noexcept {
  const VersionId id = state_.version_in(block);
  if (moving_share(block, id, largest_free) < 1 &&
      state_.storage.move(
          state_.graph[id], block.key, avoided, Placement::Evictable)) {
    count_move(block);
  } else {
    state_.evict(id);
  }
}

bool Evictor::slide(const BlockView& block) noexcept {
  const VersionId id = state_.version_in(block);
  if (state_.storage.slide(state_.graph[id], block.key)) {
    count_move(block);
    return true;
  }
  if (state_.graph.is_evictable(id)) {
    state_.evict(id);
    return true;
  }
  return false; // the device is lost, as the program's next call will tell it
}

void Evictor::count_move(const BlockView& block) noexcept {
  ++state_.counters.moves;
  state_.counters.moved_bytes += block.size;
}

// Would the free bytes serve the request if they lay together, and no copying
// can bring them there? Where it can, evicting is what takes less time.
bool Evictor::is_for_neighbors(
    const MemoryRequest& request,
    const Segments& segments) const noexcept {
  const bool copies = state_.config.windows && state_.policy->moves_blocks();
  Bytes free = 0;
  Bytes most_together = 0;
  for (const SegmentView& segment : segments) {
    Bytes together = 0;
    for (const BlockView& block : segment.blocks) {
      if (segment.serves_request && block.free) {
        free += block.size;
        together += block.size;
        most_together = std::max(most_together, together);
      } else if (!copies || !block.slides || !state_.movable_in(block)) {
        together = 0;
      }
    }
  }
  return request.size > 0 && free >= request.size &&
      most_together < request.size;
}

Bytes Evictor::evict_for(const MemoryRequest& request) noexcept {
  Counters& counters = state_.counters;
  const uint64_t before = counters.evictions;
  const Bytes resident = state_.resident;
  Bytes freed = 0;
  const Segments segments = state_.device.segments(request);
  const bool is_forced = is_for_neighbors(request, segments);
  if (state_.config.windows) {
    for (const bool allow_locked : {false, true}) {
      freed =
          freed > 0 ? freed : clear_windows(request, segments, allow_locked);
    }
    if (freed == 0) {
      freed = evict_bytes(std::max(request.shortage, Bytes{1}));
    }
  } else {
    freed = evict_bytes(1);
  }
  if (freed > 0) {
    counters.reserved_at_requests += request.reserved;
    // What the request takes of the free bytes is of use.
    const Bytes evicted = resident - state_.resident;
    const Bytes taken = request.size - std::min(request.size, evicted);
    counters.unusable_at_requests +=
        request.unused - std::min(request.unused, taken);
  }
  counters.fragmentation_evictions +=
      is_forced ? counters.evictions - before : 0;
  return freed;
}

// Note [Leaves among evictable bytes]
// Gradients lie there, and the state of an optimizer that could be evicted when
// it was made. While there is something to evict around them they are not in
// the way. When nothing is left, they hold pages and neighbors that a request
// needs, while other bytes lie free in segments of leaves that cannot be given
// back, as parameters lie there, too.
Bytes Evictor::move_leaves(const MemoryRequest& request) noexcept {
  const Bytes wanted = std::max(request.shortage, Bytes{1});
  Bytes moved = 0;
  if (!state_.policy->moves_blocks()) {
    return moved;
  }
  for (const SegmentView& segment : state_.device.segments(request)) {
    for (const BlockView& block : segment.blocks) {
      if (!segment.takes_moves || moved >= wanted) {
        continue;
      }
      const VersionId id = state_.movable_in(block);
      if (id &&
          state_.storage.move(
              state_.graph[id], block.key, {}, Placement::Leaf)) {
        count_move(block);
        moved += block.size;
      }
    }
  }
  return moved;
}

// Note [Leaves settle]
// What an optimizer keeps of each parameter was made between gradients that are
// gone, and stays for good: the gaps hold what a large request evicts, and are
// too short for it. So when an iteration begins, and little else is there, what
// is no gradient slides to the lower end.
//
// Where it stays there, only the first time costs anything. But a program that
// frees gradients in mid-iteration leaves other gaps each time. So leaves
// settle only once ops have taken kPatience times as long as the copies will,
// since they last did, and twice as many times after each.
//
// Into a gap that is far shorter than itself nothing slides: it takes a copy
// for each length of the gap.
void Evictor::settle() noexcept {
  if (!state_.config.windows || !state_.policy->moves_blocks()) {
    return;
  }
  std::vector<BlockView> sliding;
  CostNs copies = 0;
  for (const SegmentView& segment : state_.device.segments({})) {
    const auto& blocks = segment.blocks;
    Bytes gap = 0;
    for (size_t i = 0, end = settled_end(segment); i < end; ++i) {
      if (blocks[i].free) {
        gap += blocks[i].size;
      } else if (
          gap == 0 || blocks[i].size > kMostCopies * gap ||
          !settles(blocks[i])) {
        gap = 0;
      } else {
        sliding.push_back(blocks[i]);
        copies += state_.device.copy_cost(blocks[i].size, gap);
      }
    }
  }
  const auto since = static_cast<CostNs>(state_.now - settled_at_);
  if (!sliding.empty() && copies < since / patience_) {
    std::for_each(sliding.begin(), sliding.end(), [&](const BlockView& block) {
      slide(block);
    });
    settled_at_ = state_.now;
    patience_ *= 2;
  }
  state_.device.close_holes();
}

bool Evictor::settles(const BlockView& block) const noexcept {
  const VersionId id = block.slides ? state_.movable_in(block) : VersionId{};
  return id && !state_.graph[id].is_gradient;
}

// Behind the last leaf that settles.
size_t Evictor::settled_end(const SegmentView& segment) const noexcept {
  size_t end = segment.takes_moves ? segment.blocks.size() : 0;
  for (; end > 0; --end) {
    const BlockView& block = segment.blocks[end - 1];
    if (settles(block) && state_.graph.is_leaf(state_.version_in(block))) {
      break;
    }
  }
  return end;
}

Bytes Evictor::evict_all() noexcept {
  std::vector<VersionId> victims;
  state_.graph.for_each_version([&](VersionId id) {
    if (state_.graph.is_spare(id)) {
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
