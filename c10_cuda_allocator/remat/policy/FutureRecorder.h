#pragma once

#include "../graph/OpGraph.h"
#include "EvictionPolicy.h"
#include "Future.h"

#include <utility>
#include <vector>

namespace c10::remat {

// Writes down what a program does from some point on, as a Future.
class REMAT_API FutureRecorder {
 public:
  static constexpr uint32_t kUnknown = UINT32_MAX;

  void captured(const OpGraph& graph, OpId op);
  void unrecorded(const OpGraph& graph, const UnrecordedOp& op);
  // Read outside any op.
  void read(const OpGraph& graph, VersionId id);

  // Begins anew, with the next op.
  void restart();
  // Forgets all, and records no more until that.
  void give_up();

  // The end: what storages still hold will be read some time later.
  void finish(const OpGraph& graph);

  // The number of the value that `id` is; kUnknown if it was made before.
  uint32_t value_of(const OpGraph& graph, VersionId id) const;
  // Of the next op.
  uint32_t place() const {
    return static_cast<uint32_t>(future_.ops.size());
  }
  // Ops so far, without those that are not recorded.
  uint32_t recorded() const {
    return recorded_;
  }
  const Future& future() const {
    return future_;
  }
  Future take() {
    return std::move(future_);
  }

 private:
  struct Known {
    uint64_t created = 0; // slots are reused
    uint32_t value = kUnknown;
    uint32_t start = 0;
  };

  // Of the next op, but for what it makes.
  Future::Op read_by(
      const OpGraph& graph,
      const char* name,
      CostNs cost,
      const VersionIds& inputs);
  void add_use(uint32_t value);

  Future future_;
  bool has_given_up_ = false;
  uint32_t recorded_ = 0;
  uint32_t start_ = 1; // number of the restart
  std::vector<Known> known_; // by VersionId::index
};

} // namespace c10::remat
