#pragma once

#include "Ids.h"
#include "Trace.h"
#include "graph/OpGraph.h"
#include "policy/ProgramLog.h"

#include <memory>
#include <string>

namespace c10::remat {

// Tells a TraceWriter and a ProgramLog, while there are any, what happens to
// the graph of one engine. Guarded by the engine's lock. A disk that is full
// disturbs nobody: `stop` reports it.
class TraceRecorder {
 public:
  bool is_on() const {
    return writer_ != nullptr || log_ != nullptr;
  }

  // Creates or overwrites `path` and writes what is in `graph`. Throws
  // UsageError if it cannot, or if a trace is being written.
  void start(const std::string& path, const OpGraph& graph);
  // No effect if none is. Throws UsageError if some of it could not be written;
  // it ends then, too.
  void stop();
  // For the child of a fork: the file is the parent's.
  void abandon() noexcept;

  // `log`, which outlives this or the next call, is told from now on; null:
  // none is.
  void set_log(ProgramLog* log) {
    log_ = log;
  }

  // Only while it is on. See TraceEvent for what they mean.
  void version(const OpGraph& graph, VersionId id);
  void op(const OpGraph& graph, OpId id);
  // What an op did: a line for it, deaths of what it wrote over, and results
  // that are leaves. `op` is none if it is not recorded.
  struct Captured {
    const char* name;
    CostNs cost;
    const VersionIds* inputs;
    const VersionIds* written; // as they were before
    const VersionIds* results;
  };
  void captured(const OpGraph& graph, OpId op, const Captured& did);
  void access(const OpGraph& graph, VersionId id);
  void leaf_write(const OpGraph& graph, VersionId id, bool is_parameter);
  void death(const OpGraph& graph, VersionId id);
  void evict(const OpGraph& graph, VersionId id);
  void replay(const OpRecord& record);
  void pressure(Bytes wanted);

 private:
  void write_graph(const OpGraph& graph);
  void unrecorded_op(const OpGraph& graph, const Captured& did);
  void mention(const OpGraph& graph, VersionId id);
  void tell(TraceEvent&& event);
  void tell(TraceEvent::Kind kind, uint64_t id);

  std::unique_ptr<TraceWriter> writer_;
  ProgramLog* log_ = nullptr; // the policy's
};

} // namespace c10::remat
