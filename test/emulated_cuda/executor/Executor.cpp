// Puts the executor in the place of every kernel that would be launched on a
// GPU. Loaded into a process that has torch; there is no way back.
#include "Executor.h"
#include "EmulatedCuda.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <unordered_set>

namespace emulated_cuda {

namespace {

using torch::jit::Stack;

// CUDA's kernels of these do their work on the host and with copies.
const std::unordered_set<std::string>& host_only() {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::_efficientzerotensor",
      "aten::_fused_sdp_choice",
      "aten::_local_scalar_dense",
      "aten::_pin_memory",
      "aten::_reshape_alias",
      "aten::as_strided",
      "aten::empty.memory_format",
      "aten::empty_strided",
      "aten::is_pinned",
      "aten::is_set_to",
      "aten::record_stream",
      "aten::resize_",
      "aten::set_",
      "aten::set_.source_Storage",
      "aten::set_.source_Storage_storage_offset",
      "aten::set_.source_Tensor",
      "aten::unfold",
      "aten::view",
      "aten::view_as_complex",
      "aten::view_as_real",
  };
  return *names;
}

// The device of the first CUDA tensor, or that was asked for.
c10::DeviceIndex device_of(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    const Stack& stack) {
  const size_t first = stack.size() - op.schema().arguments().size();
  std::optional<c10::Device> device;
  bool has_host_tensor = false;
  for (size_t i = first; i < stack.size(); ++i) {
    if (stack[i].isDevice() && stack[i].toDevice().is_cuda() && !device) {
      device = stack[i].toDevice();
    }
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) {
        has_host_tensor |= tensor.dim() > 0 && tensor.device().is_cpu();
        return;
      }
      if (!device) {
        device = tensor.device();
      }
      TORCH_CHECK(
          *device == tensor.device() || info.takes_host_tensors,
          "Expected all tensors to be on the same device, but found at least "
          "two devices, ",
          *device,
          " and ",
          tensor.device(),
          "!");
    });
  }
  TORCH_CHECK(
      !has_host_tensor || !device || info.takes_host_tensors,
      "Expected all tensors to be on the same device, but found at least two "
      "devices, ",
      device.value_or(c10::kCUDA),
      " and cpu!");
  return device && device->has_index() ? device->index()
                                       : c10::cuda::current_device();
}

void run_in_mode(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    Stack& stack,
    c10::DeviceIndex device) {
  static const bool is_timing = emulatedCudaIsTiming() != 0;
  (is_timing ? &take_time : &execute)(op, info, stack, device);
}

void run(const c10::OperatorHandle& op, Stack* stack) {
  const OpInfo& info = OpInfo::of(op);
  const c10::DeviceIndex device = device_of(op, info, *stack);
  const c10::cuda::CUDAGuard guard(device);
  try {
    run_in_mode(op, info, *stack, device);
  } catch (const c10::NotImplementedError& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "emulated CUDA: ",
        info.name,
        " is not supported: ",
        error.what_without_backtrace());
  }
}

// As at::native's Copy.cu does it: on the stream of the source's device, which
// waits for the destination's, which waits for it.
at::Tensor& copy(
    at::Tensor& self,
    const at::Tensor& source,
    bool non_blocking) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  if (self.numel() == 0 || self.is_same(source)) {
    return self;
  }
  const bool crosses =
      self.is_cuda() && source.is_cuda() && self.device() != source.device();
  const auto device = source.is_cuda() ? source.device() : self.device();
  const c10::cuda::CUDAGuard guard(device);
  if (crosses) {
    const c10::cuda::CUDAGuard other(self.device());
    c10::Event ready(c10::kCUDA);
    ready.record(c10::cuda::getCurrentCUDAStream(self.device().index()));
    ready.block(c10::cuda::getCurrentCUDAStream(device.index()));
  }
  Stack stack{self, source, non_blocking};
  run_in_mode(op, OpInfo::of(op), stack, device.index());
  const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  if (crosses) {
    c10::Event done(c10::kCUDA);
    done.record(stream);
    done.block(c10::cuda::getCurrentCUDAStream(self.device().index()));
  } else if (
      self.device() != source.device() &&
      emulatedCudaIsCapturing(stream) == 0) {
    const at::Tensor& host = self.is_cuda() ? source : self;
    if (!non_blocking || !host.is_pinned()) {
      stream.synchronize();
    } else {
      // Not given out again before the copy is done.
      at::cuda::CachingHostAllocator_recordEvent(
          const_cast<void*>(host.const_data_ptr()),
          host.storage().data_ptr().get_context(),
          stream);
    }
  }
  return self;
}

// cuDNN wants the weights of a layer in one buffer, of which they are views.
at::Tensor flatten_weights(
    at::TensorList weights,
    int64_t,
    int64_t,
    int64_t,
    int64_t,
    int64_t,
    int64_t,
    bool,
    bool) {
  int64_t total = 0;
  for (const at::Tensor& weight : weights) {
    total += weight.numel();
  }
  const at::Tensor buffer = at::empty({total}, weights[0].options());
  int64_t offset = 0;
  for (const at::Tensor& weight : weights) {
    const at::Tensor place =
        buffer.narrow(0, offset, weight.numel()).view(weight.sizes());
    place.copy_(weight);
    at::Tensor(weight).set_(
        place.storage(),
        place.storage_offset(),
        place.sizes(),
        place.strides());
    offset += weight.numel();
  }
  return buffer;
}

void follow_allocator() {
  using c10::cuda::CUDACachingAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(
      [](const TraceEntry& entry) {
        const auto* address = reinterpret_cast<const void*>(entry.addr_);
        if (entry.action_ == TraceEntry::ALLOC) {
          emulatedCudaMarkInUse(address, entry.size_);
        } else if (entry.action_ == TraceEntry::FREE_COMPLETED) {
          emulatedCudaMarkFree(address, entry.size_);
        }
      });
}

void override_kernels() {
  // Tells of each override, or of the first; all are meant.
  struct Silence final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  // Never destroyed: that would bring CUDA's kernels back.
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name :
       dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
    const std::string full = name.name +
        (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (full.rfind("aten::", 0) != 0 || host_only().count(full) != 0 ||
        full == "aten::_cudnn_rnn_flatten_weight") {
      continue;
    }
    library->impl(
        full.substr(6).c_str(),
        torch::CppFunction::makeFromBoxedFunction<&run>());
  }
  library->impl("copy_", &copy);
  library->impl("_cudnn_rnn_flatten_weight", &flatten_weights);
}

struct OnLoad {
  OnLoad() {
    override_kernels();
    override_recurrent_layers();
  }
} on_load;

} // namespace

void check(cudaError_t error) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    TORCH_CHECK(false, "emulated CUDA: ", emulatedCudaReport());
  }
}

} // namespace emulated_cuda

// Of "aten::add_.Tensor" and its like, for tests.
extern "C" __attribute__((visibility("default"))) int
emulated_cuda_has_substitute(const char* name) {
  return emulated_cuda::substitute_for(name) != nullptr ? 1 : 0;
}

// Called when torch.cuda is first initialized, since it needs the allocator.
extern "C" __attribute__((visibility("default"))) void
emulated_cuda_follow_allocator() {
  emulated_cuda::follow_allocator();
}
