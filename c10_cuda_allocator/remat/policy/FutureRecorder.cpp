#include "FutureRecorder.h"

#include <algorithm>

namespace c10::remat {

namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdULL;
}

} // namespace

void FutureRecorder::captured(const OpGraph& graph, OpId op) {
  if (has_given_up_) {
    return;
  }
  const OpRecord& record = graph[op];
  Future::Op seen = read_by(graph, record.name, record.cost, record.inputs);
  for (const VersionId output : record.outputs) {
    if (!output) {
      continue;
    }
    if (output.index >= known_.size()) {
      known_.resize(std::max<size_t>(output.index + 1, 2 * known_.size()));
    }
    known_[output.index] = {
        graph[output].created,
        static_cast<uint32_t>(future_.values.size()),
        start_};
    future_.values.push_back({place(), graph[output].size, {}});
    seen.fingerprint = mix(seen.fingerprint, graph[output].size);
    ++seen.value_count;
  }
  future_.ops.push_back(seen);
  ++recorded_;
}

void FutureRecorder::unrecorded(const OpGraph& graph, const UnrecordedOp& op) {
  if (!has_given_up_) {
    future_.ops.push_back(read_by(graph, op.name, op.cost, op.inputs));
  }
}

Future::Op FutureRecorder::read_by(
    const OpGraph& graph,
    const char* name,
    CostNs cost,
    const VersionIds& inputs) {
  Future::Op seen;
  seen.fingerprint = future_.fingerprint();
  seen.cost = cost;
  seen.start = future_.length();
  seen.first_value = static_cast<uint32_t>(future_.values.size());
  for (const char* c = name; *c != '\0'; ++c) {
    seen.fingerprint = mix(seen.fingerprint, static_cast<unsigned char>(*c));
  }
  for (const VersionId input : inputs) {
    const uint32_t value = value_of(graph, input);
    seen.fingerprint = mix(mix(seen.fingerprint, value), graph[input].size);
    add_use(value);
  }
  return seen;
}

void FutureRecorder::read(const OpGraph& graph, VersionId id) {
  add_use(value_of(graph, id));
}

void FutureRecorder::finish(const OpGraph& graph) {
  graph.for_each_version([&](VersionId id) {
    if (graph[id].owned) {
      add_use(value_of(graph, id));
    }
  });
}

void FutureRecorder::restart() {
  future_ = {};
  recorded_ = 0;
  ++start_;
  has_given_up_ = false;
}

void FutureRecorder::give_up() {
  restart();
  has_given_up_ = true;
}

uint32_t FutureRecorder::value_of(const OpGraph& graph, VersionId id) const {
  return id.index < known_.size() &&
          known_[id.index].created == graph[id].created &&
          known_[id.index].start == start_
      ? known_[id.index].value
      : kUnknown;
}

void FutureRecorder::add_use(uint32_t value) {
  if (value == kUnknown) {
    return;
  }
  auto& uses = future_.values[value].uses;
  if (uses.empty() || uses.back() != place()) {
    uses.push_back(place());
  }
}

} // namespace c10::remat
