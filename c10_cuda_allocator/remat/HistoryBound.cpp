#include "HistoryBound.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace c10::remat {

namespace {

// What the outputs of a record rest on.
struct History {
  uint32_t length = 0; // dead intermediates in a row
  Bytes held = 0; // by leaves that died
};

} // namespace

// Note [Bounded history]
// A record keeps the versions that it reads, and so their records: a value
// carried from step to step (momentum, running sums, the state of a recurrent
// network) would keep all steps. Each time the number of records has doubled,
// every record whose owned outputs rest on more than `longest_history` dead
// intermediates in a row, or on more held bytes than they have themselves, is
// cut: its outputs become leaves, at once where they are resident, otherwise
// as soon as they are. Doubling makes the cost per op constant.

void HistoryBound::enforce(Garbage& garbage) {
  OpGraph& graph = state_.graph;
  std::vector<OpId> ops;
  graph.for_each_op([&](OpId id) { ops.push_back(id); });
  std::sort(ops.begin(), ops.end(), [&](OpId a, OpId b) {
    return graph[a].sequence < graph[b].sequence;
  });
  std::unordered_map<OpId, History> histories;
  std::vector<OpId> too_long;
  for (const OpId op : ops) {
    History& history = histories[op];
    history.length = 1;
    Bytes owned = 0;
    for (const VersionId input : graph[op].inputs) {
      const StorageVersion& version = graph[input];
      if (version.owned) {
        continue;
      }
      if (!version.producer) {
        history.held += version.size;
        continue;
      }
      const History& before = histories[version.producer];
      history.length = std::max(history.length, before.length + 1);
      history.held += before.held;
    }
    for (const VersionId output : graph[op].outputs) {
      owned += output && graph[output].owned ? graph[output].size : 0;
    }
    if (owned != 0 &&
        (history.length > state_.config.longest_history ||
         history.held > owned)) {
      too_long.push_back(op);
      history = History{};
    }
  }
  for (const OpId op : too_long) {
    const VersionIds outputs = graph[op].outputs;
    for (const VersionId output : outputs) {
      graph[op].cut_pending |=
          output && graph[output].owned && !graph[output].resident;
    }
    for (const VersionId output : outputs) {
      if (output && graph[output].owned && graph[output].pins == 0 &&
          state_.can_become_leaf(output)) {
        state_.make_leaf(output, garbage);
      }
    }
  }
  state_.settle(garbage);
  next_check_ = std::max(kFirstCheck, 2 * graph.op_count());
}

} // namespace c10::remat
