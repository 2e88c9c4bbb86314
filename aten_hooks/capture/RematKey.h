#pragma once

#include <c10/core/DispatchKey.h>

namespace at::remat {

// The functionality key that capture is a fallback of. PyTorch 2.6 reserves it
// for an out-of-tree library that is no longer developed; it sits below
// autograd, functionalization and autocast, and above Python and the backends.
constexpr c10::DispatchKey kRematKey = c10::DispatchKey::Fake;

// In how many captured or replayed ops is this thread? Ops call others.
int op_depth();

class OpDepthGuard {
 public:
  OpDepthGuard();
  ~OpDepthGuard();
  OpDepthGuard(const OpDepthGuard&) = delete;
  OpDepthGuard& operator=(const OpDepthGuard&) = delete;
};

} // namespace at::remat
