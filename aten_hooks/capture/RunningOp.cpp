#include "RunningOp.h"

#include "OpCall.h"

namespace at::remat {

namespace {

thread_local const RunningOp* innermost = nullptr;

} // namespace

RunningOp::RunningOp(const OpCall& call)
    : call_(&call), request_(nullptr), outer_(innermost) {
  innermost = this;
}

RunningOp::RunningOp(const c10::remat::ReplayRequest& request)
    : call_(nullptr), request_(&request), outer_(innermost) {
  innermost = this;
}

RunningOp::~RunningOp() {
  innermost = outer_;
}

const RunningOp* RunningOp::current() {
  return innermost;
}

const char* RunningOp::name() const {
  return is_replayed() ? request_->record->name : call_->name();
}

c10::remat::Bytes RunningOp::operand_bytes() const {
  if (!is_replayed()) {
    return call_->operand_bytes();
  }
  c10::remat::Bytes bytes = 0;
  for (const c10::remat::StorageVersion* input : request_->inputs) {
    bytes += input->size;
  }
  return bytes;
}

} // namespace at::remat
