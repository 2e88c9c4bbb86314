#pragma once

#include <c10/remat/graph/OpGraph.h>
#include <c10/remat/policy/EvictionPolicy.h>
#include <c10/remat/policy/VictimIndex.h>

#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace c10::remat {

// A graph, and a policy and index that are told of each change to it as the
// engine tells them. Storages have no bytes.
class PolicyBench {
 public:
  explicit PolicyBench(EvictionPolicy& policy)
      : policy_(policy), index(graph, policy) {}

  VersionId leaf(Bytes size) {
    const VersionId id = graph.add_version(size, nullptr, now);
    graph.own(id);
    graph[id].resident = true;
    index.refresh(id);
    return id;
  }

  // An op with one output per size, run now.
  std::vector<VersionId> op(
      CostNs cost,
      std::vector<VersionId> inputs,
      const std::vector<Bytes>& sizes,
      uint64_t epoch = 0) {
    now += cost;
    OpRecord record;
    record.cost = cost;
    record.inputs = std::move(inputs);
    for (const VersionId input : record.inputs) {
      graph[input].last_access = now;
    }
    for (const Bytes size : sizes) {
      record.outputs.push_back(leaf(size));
      graph[record.outputs.back()].epoch = epoch;
    }
    const std::vector<VersionId> outputs = record.outputs;
    const OpId op = graph.add_op(std::move(record));
    policy_.on_captured(graph, op);
    for (const VersionId output : outputs) {
      index.refresh(output);
    }
    return outputs;
  }
  VersionId op1(
      CostNs cost,
      std::vector<VersionId> inputs,
      Bytes size,
      uint64_t epoch = 0) {
    return op(cost, std::move(inputs), {size}, epoch)[0];
  }

  void evict(VersionId id) {
    graph[id].resident = false;
    index.remove(id);
    policy_.on_evicted(graph, id);
  }
  void rematerialize(VersionId id) {
    graph[id].resident = true;
    graph[id].last_access = now;
    policy_.on_rematerialized(graph, id);
    index.refresh(id);
  }
  void access(VersionId id) {
    graph[id].last_access = now;
  }
  void make_leaf(VersionId id) {
    policy_.on_forgotten(graph, id);
    Garbage garbage;
    forget([&] { graph.make_leaf(id, garbage); }, garbage);
    index.refresh(id);
  }
  void kill(VersionId id) {
    const bool was_in_use = graph[id].resident && graph[id].producer;
    graph.disown(id);
    index.remove(id);
    if (graph[id].producer) {
      graph[id].resident = false;
    }
    if (was_in_use) {
      policy_.on_evicted(graph, id);
    }
    Garbage garbage;
    forget([&] { graph.collect(id, garbage); }, garbage);
  }

  Ticks now = 0;
  OpGraph graph;

 private:
  // Tells the policy of what `change` makes the graph forget.
  template <class Change>
  void forget(Change change, Garbage& garbage) {
    std::vector<std::pair<OpId, OpRecord>> before;
    graph.for_each_op([&](OpId op) { before.emplace_back(op, graph[op]); });
    change();
    for (const VersionId id : garbage.versions) {
      index.remove(id);
      policy_.on_forgotten(graph, id);
    }
    for (const auto& [op, record] : before) {
      if (!graph[op].alive) {
        policy_.on_op_forgotten(graph, op, record);
      } else if (graph[op].outputs != record.outputs) {
        policy_.on_output_forgotten(graph, op);
      }
    }
    for (const VersionId id : garbage.versions) {
      graph.free_slot(id);
    }
    for (const OpId op : garbage.ops) {
      graph.free_slot(op);
    }
  }

  EvictionPolicy& policy_;

 public:
  VictimIndex index;
};

} // namespace c10::remat
