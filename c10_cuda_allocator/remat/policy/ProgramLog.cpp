#include "ProgramLog.h"

#include <iterator>
#include <utility>

namespace c10::remat {

namespace {

using Kind = TraceEvent::Kind;

size_t bytes_of(const TraceEvent& event) {
  return sizeof(event) + event.name.capacity() +
      event.inputs.size() * sizeof(uint64_t) +
      event.outputs.size() * sizeof(TraceEvent::Output) +
      event.overwrites.size() * sizeof(TraceEvent::Overwrite);
}

TraceEvent version(const StorageVersion& version) {
  TraceEvent event;
  event.kind = Kind::Version;
  event.id = version.created;
  event.size = version.size;
  return event;
}

} // namespace

void ProgramLog::clear() {
  leaves_.clear();
  events_.clear();
  named_.clear();
  bytes_ = 0;
}

void ProgramLog::add_leaves(const OpGraph& graph) {
  graph.for_each_version([&](VersionId id) {
    if (is_complete() && graph.is_leaf(id) && graph[id].owned &&
        graph[id].resident && named_.insert(graph[id].created).second) {
      push(version(graph[id]), leaves_);
    }
  });
}

std::vector<TraceEvent> ProgramLog::take() {
  std::vector<TraceEvent> all = std::move(leaves_);
  all.insert(
      all.end(),
      std::make_move_iterator(events_.begin()),
      std::make_move_iterator(events_.end()));
  clear();
  return all;
}

void ProgramLog::mention(const OpGraph& graph, VersionId id) {
  if (is_complete() && named_.insert(graph[id].created).second) {
    // A leaf has been there from the start, or its making would have been told.
    push(version(graph[id]), graph.is_leaf(id) ? leaves_ : events_);
  }
}

void ProgramLog::add(TraceEvent event) {
  if (!is_complete()) {
    return;
  }
  switch (event.kind) {
  case Kind::Evict:
  case Kind::Replay:
  case Kind::Pressure:
    return;
  case Kind::Death:
    if (named_.erase(event.id) == 0) {
      return;
    }
    break;
  case Kind::Version:
    named_.insert(event.id);
    break;
  case Kind::Op:
    for (const TraceEvent::Overwrite& overwrite : event.overwrites) {
      named_.erase(overwrite.input);
    }
    for (const TraceEvent::Output& output : event.outputs) {
      named_.insert(output.id);
    }
    break;
  case Kind::Access:
  case Kind::LeafWrite:
  case Kind::ParameterWrite:
    break;
  }
  push(std::move(event), events_);
}

void ProgramLog::push(TraceEvent&& event, std::vector<TraceEvent>& events) {
  bytes_ += bytes_of(event);
  if (is_complete()) {
    events.push_back(std::move(event));
  } else {
    leaves_ = {};
    events_ = {};
    named_ = {};
  }
}

} // namespace c10::remat
