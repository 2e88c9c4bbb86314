#include "EngineState.h"

#include <algorithm>
#include <vector>

namespace c10::remat {

void EngineState::change_policy(std::unique_ptr<EvictionPolicy> new_policy) {
  trace.set_log(nullptr);
  policy = std::move(new_policy);
  index = std::make_unique<VictimIndex>(graph, *policy);
  std::vector<OpId> ops;
  graph.for_each_op([&](OpId op) { ops.push_back(op); });
  std::sort(ops.begin(), ops.end(), [&](OpId a, OpId b) {
    return graph[a].sequence < graph[b].sequence;
  });
  for (const OpId op : ops) {
    policy->on_captured(graph, op);
  }
  graph.for_each_version([&](VersionId id) {
    if (graph[id].owned && !graph[id].resident) {
      policy->on_evicted(graph, id);
    }
  });
  graph.for_each_version([&](VersionId id) { index->refresh(id); });
}

void EngineState::release_bytes(VersionId id) noexcept {
  StorageVersion& version = graph[id];
  storage.release(version);
  version.resident = false;
  resident -= version.size;
  version.kept = false;
}

void EngineState::settle(Garbage& garbage) noexcept {
  for (const OpId op : garbage.ops) {
    policy->on_op_forgotten(graph, op, graph[op]);
    garbage.payloads.push_back(std::move(graph[op].payload));
    graph.free_slot(op);
  }
  garbage.ops.clear();
  for (const OpId op : garbage.shrunk_ops) {
    if (graph[op].alive) {
      policy->on_output_forgotten(graph, op);
    }
  }
  garbage.shrunk_ops.clear();
  for (const VersionId id : garbage.versions) {
    StorageVersion& version = graph[id];
    index->remove(id);
    policy->on_forgotten(graph, id);
    if (version.resident) {
      release_bytes(id);
    }
    storage.forget(version);
    graph.free_slot(id);
  }
  garbage.versions.clear();
}

void EngineState::evict(VersionId id) noexcept {
  release_bytes(id);
  if (trace.is_on()) {
    trace.evict(graph, id);
  }
  ++counters.evictions;
  index->remove(id);
  policy->on_evicted(graph, id);
}

void EngineState::rematerialized(VersionId id, std::unique_ptr<Buffer> buffer) {
  StorageVersion& version = graph[id];
  storage.adopt(version, std::move(buffer));
  version.resident = true;
  resident += version.size;
  version.last_access = now;
  if (version.owned) {
    policy->on_rematerialized(graph, id);
    index->refresh(id);
  }
}

void EngineState::release_if_unused(
    VersionId id,
    Garbage& garbage,
    bool was_replayed) noexcept {
  StorageVersion& version = graph[id];
  if (!version.alive) {
    return;
  }
  if (version.resident && !version.owned && !version.kept &&
      version.pins == 0 && version.reservations == 0 && version.producer) {
    if (policy->keeps(graph, id, was_replayed)) {
      version.kept = true;
      policy->on_rematerialized(graph, id);
      index->refresh(id);
    } else {
      release_bytes(id);
    }
  }
  graph.collect(id, garbage);
}

void EngineState::report_residual() {
  const Bytes usage = device.usage();
  policy->on_residual(
      config.budget == Config::kUnlimited ? Config::kUnlimited
          : usage < config.budget         ? config.budget - usage
                                          : 0,
      config.budget);
}

void EngineState::report_pressure(bool needs_neighbors) {
  policy->on_residual(0, config.budget);
  if (config.budget != Config::kUnlimited) {
    const Bytes usage = device.usage();
    const Bytes room =
        resident + (usage < config.budget ? config.budget - usage : 0);
    policy->on_pressure(needs_neighbors ? room - room / kUnusable : room);
  }
}

void EngineState::let_go(VersionId id, Garbage& garbage) noexcept {
  --graph[id].pins;
  release_if_unused(id, garbage);
}

void EngineState::unpin(const VersionIds& ids, Garbage& garbage) {
  for (const VersionId id : ids) {
    let_go(id, garbage);
  }
  settle(garbage);
}

void EngineState::make_leaf(VersionId id, Garbage& garbage) {
  policy->on_forgotten(graph, id);
  graph.make_leaf(id, garbage);
  index->refresh(id);
}

void EngineState::cut_if_pending(OpId op, Garbage& garbage) {
  if (!graph[op].alive || !graph[op].cut_pending) {
    return;
  }
  const VersionIds outputs = graph[op].outputs;
  for (const VersionId output : outputs) {
    if (output && graph[output].owned && can_become_leaf(output)) {
      make_leaf(output, garbage);
    }
  }
}

} // namespace c10::remat
