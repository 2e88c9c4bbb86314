#pragma once

#include <c10/remat/Ids.h>
#include <c10/remat/Ports.h>

namespace at::remat {

class OpCall;

// While it lives, this thread makes an op's operands resident and runs its
// kernel, for the program or in a replay. Ops that the kernel calls are part of
// that.
class RunningOp {
 public:
  // What it is made from must outlive it.
  explicit RunningOp(const OpCall& call);
  explicit RunningOp(const c10::remat::ReplayRequest& request);
  ~RunningOp();
  RunningOp(const RunningOp&) = delete;
  RunningOp& operator=(const RunningOp&) = delete;

  // The innermost; null: this thread runs none.
  static const RunningOp* current();

  const char* name() const;
  bool is_replayed() const {
    return request_ != nullptr;
  }
  // What it is part of, or is replayed for.
  const RunningOp* outer() const {
    return outer_;
  }
  // Of the storages that it was given.
  c10::remat::Bytes operand_bytes() const;

 private:
  const OpCall* const call_;
  const c10::remat::ReplayRequest* const request_;
  const RunningOp* const outer_;
};

} // namespace at::remat
