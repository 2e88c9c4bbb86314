#include "TraceRecorder.h"

#include "Errors.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace c10::remat {

using Kind = TraceEvent::Kind;

void TraceRecorder::start(const std::string& path, const OpGraph& graph) {
  if (writer_ != nullptr) {
    throw UsageError(
        "cannot write a trace to \"" + path +
        "\": another is being written; stop it first");
  }
  writer_ = std::make_unique<TraceWriter>(path);
  ProgramLog* const log = std::exchange(log_, nullptr); // knows all this
  write_graph(graph);
  log_ = log;
}

void TraceRecorder::stop() {
  if (const auto writer = std::move(writer_)) {
    writer->close();
  }
}

void TraceRecorder::abandon() noexcept {
  // Not closed: that would write what the parent is going to write.
  (void)writer_.release();
}

// As if it had happened just now: leaves and ops in the order in which they
// came, each death after the last op that reads it, evictions at the end.
void TraceRecorder::write_graph(const OpGraph& graph) {
  std::vector<std::pair<uint64_t, VersionId>> leaves;
  std::vector<std::pair<uint64_t, OpId>> ops;
  std::unordered_map<VersionId, uint64_t> last_reads;
  graph.for_each_version([&](VersionId id) {
    if (graph.is_leaf(id)) {
      leaves.emplace_back(graph[id].created, id);
    }
  });
  graph.for_each_op([&](OpId id) {
    ops.emplace_back(graph[id].sequence, id);
    for (const VersionId input : graph[id].inputs) {
      uint64_t& last = last_reads[input];
      last = std::max(last, graph[id].sequence);
    }
  });
  std::sort(leaves.begin(), leaves.end());
  std::sort(ops.begin(), ops.end());

  auto leaf = leaves.begin();
  const auto write_leaves_before = [&](uint64_t sequence) {
    for (; leaf != leaves.end() && leaf->first < sequence; ++leaf) {
      version(graph, leaf->second);
      if (!graph[leaf->second].owned && last_reads.count(leaf->second) == 0) {
        death(graph, leaf->second);
      }
    }
  };
  for (const auto& [sequence, id] : ops) {
    write_leaves_before(sequence);
    op(graph, id);
    const OpRecord& record = graph[id];
    for (const VersionId input : record.inputs) {
      if (!graph[input].owned && last_reads[input] == sequence &&
          !overwrites(record, input)) {
        death(graph, input);
      }
    }
    for (const VersionId output : record.outputs) {
      if (output && !graph[output].owned && last_reads.count(output) == 0) {
        death(graph, output);
      }
    }
  }
  write_leaves_before(graph.next_sequence());
  graph.for_each_version([&](VersionId id) {
    if (graph[id].owned && !graph[id].resident) {
      evict(graph, id);
    }
  });
}

void TraceRecorder::mention(const OpGraph& graph, VersionId id) {
  if (log_ != nullptr) {
    log_->mention(graph, id);
  }
}

void TraceRecorder::tell(TraceEvent&& event) {
  if (writer_ != nullptr) {
    writer_->write(event);
  }
  if (log_ != nullptr) {
    log_->add(std::move(event));
  }
}

void TraceRecorder::tell(TraceEvent::Kind kind, uint64_t id) {
  TraceEvent event;
  event.kind = kind;
  event.id = id;
  tell(std::move(event));
}

void TraceRecorder::version(const OpGraph& graph, VersionId id) {
  TraceEvent event;
  event.kind = Kind::Version;
  event.id = graph[id].created;
  event.size = graph[id].size;
  tell(std::move(event));
}

void TraceRecorder::op(const OpGraph& graph, OpId id) {
  const OpRecord& record = graph[id];
  TraceEvent event;
  event.kind = TraceEvent::Kind::Op;
  event.id = record.sequence;
  event.name = record.name;
  event.cost = record.cost;
  for (const VersionId input : record.inputs) {
    mention(graph, input);
    event.inputs.push_back(graph[input].created);
  }
  for (const VersionId output : record.outputs) {
    event.outputs.push_back(
        output ? TraceEvent::Output{graph[output].created, graph[output].size}
               : TraceEvent::Output{0, 0});
  }
  for (const Overwrite& overwrite : record.overwrites) {
    event.overwrites.push_back(
        {event.inputs[overwrite.input], event.outputs[overwrite.output].id});
  }
  tell(std::move(event));
}

// What a storage held before ends with the op if that reads it, else before
// it, and needs no line where the op's says so.
void TraceRecorder::captured(
    const OpGraph& graph,
    OpId id,
    const Captured& did) {
  VersionIds end_with_op;
  for (const VersionId old : *did.written) {
    const auto& inputs = *did.inputs;
    if (std::find(inputs.begin(), inputs.end(), old) == inputs.end()) {
      death(graph, old);
    } else if (!id || !overwrites(graph[id], old)) {
      end_with_op.push_back(old);
    }
  }
  if (id) {
    op(graph, id);
  } else {
    unrecorded_op(graph, did);
  }
  for (const VersionId old : end_with_op) {
    death(graph, old);
  }
  for (const VersionId result : *did.results) {
    if (graph.is_leaf(result)) {
      version(graph, result);
    }
  }
}

void TraceRecorder::unrecorded_op(const OpGraph& graph, const Captured& did) {
  TraceEvent event;
  event.kind = TraceEvent::Kind::Op;
  event.name = did.name;
  event.cost = did.cost;
  for (const VersionId input : *did.inputs) {
    mention(graph, input);
    event.inputs.push_back(graph[input].created);
  }
  tell(std::move(event));
}

void TraceRecorder::access(const OpGraph& graph, VersionId id) {
  mention(graph, id);
  tell(Kind::Access, graph[id].created);
}

void TraceRecorder::leaf_write(
    const OpGraph& graph,
    VersionId id,
    bool is_parameter) {
  mention(graph, id);
  tell(
      is_parameter ? Kind::ParameterWrite : Kind::LeafWrite, graph[id].created);
}

void TraceRecorder::death(const OpGraph& graph, VersionId id) {
  tell(Kind::Death, graph[id].created);
}

void TraceRecorder::evict(const OpGraph& graph, VersionId id) {
  tell(Kind::Evict, graph[id].created);
}

void TraceRecorder::replay(const OpRecord& record) {
  tell(Kind::Replay, record.sequence);
}

void TraceRecorder::pressure(Bytes wanted) {
  TraceEvent event;
  event.kind = Kind::Pressure;
  event.size = wanted;
  tell(std::move(event));
}

} // namespace c10::remat
