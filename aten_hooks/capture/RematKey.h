#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace at::remat {

// The functionality key that capture is a fallback of. PyTorch 2.6 reserves it
// for an out-of-tree library that is no longer developed; it sits below
// autograd, functionalization and autocast, and above Python and the backends.
constexpr c10::DispatchKey kRematKey = c10::DispatchKey::Fake;

// Keeps the ops that this thread calls from being captured. Upstream's guard
// would not: see ThreadDefault.h.
class NoCaptureGuard {
 public:
  NoCaptureGuard()
      : before_(c10::impl::tls_is_dispatch_key_excluded(kRematKey)) {
    c10::impl::tls_set_dispatch_key_excluded(kRematKey, true);
  }
  ~NoCaptureGuard() {
    c10::impl::tls_set_dispatch_key_excluded(kRematKey, before_);
  }
  NoCaptureGuard(const NoCaptureGuard&) = delete;
  NoCaptureGuard& operator=(const NoCaptureGuard&) = delete;

 private:
  bool before_;
};

} // namespace at::remat
