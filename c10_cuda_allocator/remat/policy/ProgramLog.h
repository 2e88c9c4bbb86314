#pragma once

#include "../TraceEvent.h"
#include "../graph/OpGraph.h"

#include <unordered_set>
#include <utility>
#include <vector>

namespace c10::remat {

// What a program does from some point on, as the events of a trace: for who
// wants to simulate it. What was there before is in it as if it were made from
// nothing: leaves at the start, other versions when they are first named.
class REMAT_API ProgramLog {
 public:
  // A program that does more than this takes is not logged to its end.
  static constexpr size_t kMostBytes = size_t{16} << 20;

  // Starts anew.
  void clear();
  // Those of `graph` that are resident, whether they are ever named or not. To
  // be called soon after the start, before many of them have died.
  void add_leaves(const OpGraph& graph);

  // `id` is named by the next event. No effect if an event has made it.
  void mention(const OpGraph& graph, VersionId id);
  // Events of other kinds than the program's doing, and deaths of what was
  // never named, are left out.
  void add(TraceEvent event);

  bool is_complete() const {
    return bytes_ <= kMostBytes;
  }
  std::vector<TraceEvent> take();
  size_t bytes() const {
    return bytes_;
  }

 private:
  void push(TraceEvent&& event, std::vector<TraceEvent>& events);

  std::vector<TraceEvent> leaves_; // come first
  std::vector<TraceEvent> events_;
  std::unordered_set<uint64_t> named_; // and alive, by StorageVersion::created
  size_t bytes_ = 0;
};

} // namespace c10::remat
