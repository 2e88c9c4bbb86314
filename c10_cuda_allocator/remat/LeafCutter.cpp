#include "LeafCutter.h"

#include "Dependents.h"

#include <vector>

namespace c10::remat {

namespace {

// A leaf is kept for replay only if what rests on it has this many times its
// bytes.
constexpr Bytes kLeastSupport = 4;

} // namespace

// Note [Leaves that are written or die]
// What was computed from a leaf can be replayed only while its bytes are there.
// Where they are few beside what rests on them they are kept for that: a copy
// when the leaf is about to be written, the bytes themselves when its storage
// has died. Otherwise its dependents become leaves, those evicted after coming
// back, and nothing is kept that the program has given back.
bool LeafCutter::is_worth_keeping(VersionId id) const {
  const OpGraph& graph = state_.graph;
  Bytes dependents = 0;
  const Dependents found = find_dependents(graph, id);
  for (const auto* list : {&found.resident, &found.evicted}) {
    for (const VersionId dependent : *list) {
      dependents += graph[dependent].owned ? graph[dependent].size : 0;
    }
  }
  // Leaves that the same ops read, and that are gone or about to be written,
  // too, count as one: each alone may look small.
  Bytes kept = graph[id].size;
  for (const OpId reader : graph[id].readers) {
    for (const VersionId input : graph[reader].inputs) {
      const StorageVersion& version = graph[input];
      const bool goes = !version.owned || version.writers > 0;
      kept += input != id && goes && !version.producer ? version.size : 0;
    }
  }
  return is_worth_keeping(kept, dependents);
}

bool LeafCutter::is_worth_keeping(Bytes kept, Bytes dependents) {
  return kept <= dependents / kLeastSupport;
}

void LeafCutter::cut(
    VersionId id,
    std::unique_lock<std::mutex>& lock,
    Garbage& garbage) {
  ++state_.graph[id].pins;
  try {
    for (;;) {
      const Dependents found = find_dependents(state_.graph, id);
      for (const VersionId dependent : found.resident) {
        state_.make_leaf(dependent, garbage);
      }
      state_.settle(garbage);
      if (found.evicted.empty()) {
        break;
      }
      const std::vector<VersionId> next{found.evicted.front()};
      ++state_.graph[next[0]].pins;
      try {
        rematerializer_.bring_back(next, lock, garbage);
      } catch (...) {
        state_.unpin(next, garbage);
        throw;
      }
      if (!state_.graph.is_leaf(next[0])) {
        state_.make_leaf(next[0], garbage);
      }
      state_.unpin(next, garbage);
    }
  } catch (...) {
    state_.unpin({id}, garbage);
    throw;
  }
  state_.unpin({id}, garbage);
}

void LeafCutter::cut_from_dead(VersionId id, Garbage& garbage) {
  if (is_worth_keeping(id)) {
    return; // held until memory is short or its dependents are gone
  }
  const Dependents found = find_dependents(state_.graph, id);
  for (const VersionId evicted : found.evicted) {
    state_.graph[state_.graph[evicted].producer].cut_pending = true;
  }
  for (const VersionId resident : found.resident) {
    if (is_cuttable(resident)) {
      state_.make_leaf(resident, garbage);
    } else {
      state_.graph[state_.graph[resident].producer].cut_pending = true;
    }
  }
  state_.settle(garbage);
}

// Not what only a replay under way has made.
bool LeafCutter::is_cuttable(VersionId id) const {
  return state_.graph[id].owned && state_.can_become_leaf(id);
}

// Under pressure a held leaf is worth less than what rests on it: those become
// leaves and its bytes are given back.
Bytes LeafCutter::release_held(Bytes wanted, Garbage& garbage) {
  std::vector<VersionId> held;
  state_.graph.for_each_version([&](VersionId id) {
    const StorageVersion& version = state_.graph[id];
    if (version.resident && !version.owned && !version.producer &&
        version.pins == 0 && version.reservations == 0) {
      held.push_back(id);
    }
  });
  Bytes freed = 0;
  for (const VersionId id : held) {
    if (freed >= wanted) {
      break;
    }
    const Bytes size = state_.graph[id].size;
    if (state_.graph[id].alive && try_cut(id, garbage)) {
      state_.release_if_unused(id, garbage);
      state_.settle(garbage);
      freed += size;
    }
  }
  return freed;
}

bool LeafCutter::try_cut(VersionId id, Garbage& garbage) {
  const Dependents found = find_dependents(state_.graph, id);
  if (!found.evicted.empty()) {
    return false;
  }
  for (const VersionId dependent : found.resident) {
    if (!is_cuttable(dependent)) {
      return false;
    }
  }
  for (const VersionId dependent : found.resident) {
    state_.make_leaf(dependent, garbage);
  }
  state_.settle(garbage);
  return true;
}

} // namespace c10::remat
