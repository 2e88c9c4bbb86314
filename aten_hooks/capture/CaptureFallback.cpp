#include "OpCall.h"
#include "OverheadSample.h"
#include "RematKey.h"

#include <torch/library.h>

namespace at::remat {

namespace {

constexpr c10::DispatchKeySet kBelowRemat(
    c10::DispatchKeySet::FULL_AFTER,
    kRematKey);

// Note [Life of an op]
// Every op of every thread comes here once autograd, autocast and
// functionalization are done with it, boxed. Three kinds pass untouched: ops
// that carry the Python key (dispatch modes and subclasses, whose inner ops
// come back here), views, which touch no bytes, and everything while remat is
// off. For the others OpCall looks at the arguments, the engine makes what
// they need resident and pins it, the op runs, and OpCall tells the engine
// what came of it.
//
// Ops inside a kernel of ATen are not captured: they use the arguments of the
// outer op, which are pinned. Ops inside other kernels get residency and pins,
// but no record, since the outer op is replayed as a whole.
void capture(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet key_set,
    torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = key_set & kBelowRemat;
  Engine* engine = RematMode::get().active();
  if (engine == nullptr || key_set.has(c10::DispatchKey::Python)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  OverheadSample overhead(*engine);
  const OpTraits& traits = OpTraits::of(op);
  if (traits.is_view) {
    overhead.pause();
    op.redispatchBoxed(below, stack);
    return;
  }
  OpCall call(op, traits, below, *engine, *stack);
  call.begin();
  overhead.pause();
  try {
    const OpDepthGuard depth_guard;
    if (traits.is_aten) {
      const NoCaptureGuard no_capture_guard;
      op.redispatchBoxed(below, stack);
    } else {
      op.redispatchBoxed(below, stack);
    }
  } catch (...) {
    call.abort();
    throw;
  }
  overhead.resume();
  call.end();
}

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&capture>());
}

} // namespace

} // namespace at::remat
