#include "OpCall.h"
#include "OverheadSample.h"
#include "RematKey.h"
#include "RunningOp.h"
#include "TensorKinds.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/remat/DeviceMemory.h>
#include <torch/library.h>

#include <optional>

namespace at::remat {

namespace {

constexpr c10::DispatchKeySet kBelowRemat(
    c10::DispatchKeySet::FULL_AFTER,
    kRematKey);

// That an op runs on: the CUDA device that its results are asked for on, or of
// its first CUDA tensor. What has neither runs on the CPU.
c10::Device device_of(
    const OpTraits& traits,
    c10::DispatchKeySet key_set,
    const torch::jit::Stack& stack) {
  const size_t first = stack.size() - traits.args.size();
  if (traits.device_arg >= 0) {
    const c10::IValue& asked = stack[first + traits.device_arg];
    if (asked.isDevice() && asked.toDevice().is_cuda()) {
      return asked.toDevice().has_index()
          ? asked.toDevice()
          : c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
    }
  }
  if (!key_set.has_backend(c10::BackendComponent::CUDABit)) {
    return c10::kCPU;
  }
  for (size_t i = 0; i < traits.args.size(); ++i) {
    if (traits.args[i].kind == OpTraits::ArgKind::Other) {
      continue;
    }
    const c10::IValue& value = stack[first + i];
    if (value.isTensor() && value.toTensor().is_cuda()) {
      return value.toTensor().device();
    }
    if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor() && element.toTensor().is_cuda()) {
          return element.toTensor().device();
        }
      }
    }
  }
  return c10::kCPU;
}

// Tensor.record_stream of a managed storage: upstream's kernel leaves DataPtrs
// alone that are not the allocator's own.
bool record_stream(torch::jit::Stack& stack) {
  const at::Tensor& tensor = stack[stack.size() - 2].toTensor();
  const c10::Stream stream = stack.back().toStream();
  StorageHandle* handle =
      tensor.has_storage() ? handle_of(storage_of(tensor)) : nullptr;
  if (handle == nullptr) {
    return false;
  }
  {
    const auto lock = lock_stream_uses(handle->device);
    handle->streams.recorded_by_program(stream);
  }
  torch::jit::drop(stack, 2);
  return true;
}

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
  if (!RematMode::get().is_active() || key_set.has(c10::DispatchKey::Python)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  const OpTraits& traits = OpTraits::of(op);
  const c10::Device device = device_of(traits, key_set, *stack);
  ManagedDevice* managed = RematMode::get().active_on(device);
  OverheadSample overhead(managed == nullptr ? nullptr : &managed->engine());
  if (traits.records_stream && record_stream(*stack)) {
    return;
  }
  if (traits.is_view) {
    overhead.pause();
    op.redispatchBoxed(below, stack);
    return;
  }
  OpCall call(op, traits, below, device, *stack);
  std::optional<RunningOp> running(call);
  call.begin();
  overhead.pause();
  try {
    const c10::remat::PlacementGuard placement(
        call.placement(), &call.placement_plan());
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
  running.reset();
  overhead.resume();
  call.end();
}

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&capture>());
}

} // namespace

} // namespace at::remat
