// Timing mode: nothing is computed. Results have the sizes that meta kernels
// say, on device memory without bytes, and the stream's clock moves on.
#include "Executor.h"
#include "Results.h"
#include "Roofline.h"
#include "Shapes.h"

#include <ATen/ATen.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <mutex>

namespace emulated_cuda {

namespace {

using torch::jit::Stack;

// All work of this process.
struct Total {
  std::mutex mutex;
  double flops = 0, bytes = 0, ns = 0;
};
Total& total() {
  static auto* result = new Total;
  return *result;
}

// Some of PyTorch's meta kernels are Python functions, which modes of the
// program's (a default device) are not meant for.
class NoTorchFunctions {
 public:
  NoTorchFunctions()
      : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(
        at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunctions() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(before_);
  }
  NoTorchFunctions(const NoTorchFunctions&) = delete;
  NoTorchFunctions& operator=(const NoTorchFunctions&) = delete;

 private:
  at::impl::TorchFunctionDisabledState before_;
};

// Whether an op's result, or its size, depends on the contents of its inputs.
bool depends_on_values(const OpInfo& info, const Stack& stack, size_t first) {
  if (info.name == "aten::index.Tensor" ||
      info.name == "aten::_index_put_impl_") {
    bool has_mask = false;
    for_each_tensor(stack[first + 1], [&](const at::Tensor& index) {
      has_mask |=
          index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
    return has_mask;
  }
  return info.waits && shape_rule_for(info.name) == nullptr;
}

void infer_shapes(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  const NoTorchFunctions plain;
  if (info.generator_arg >= 0) {
    stack[info.generator_arg] = c10::IValue();
  }
  if (const ShapeRule rule = shape_rule_for(info.name)) {
    rule(stack);
  } else if (op.schema().returns().empty()) {
    stack.clear(); // of lists, whose sizes stay as they are
  } else {
    op.callBoxed(&stack);
  }
}

// What the stream is told of an op.
struct Launch {
  std::string name;
  std::vector<EmulatedAccess> accesses;
  Work work;
  double ns;

  void operator()(cudaStream_t stream) const {
    check(emulatedCudaLaunch(
        stream, name.c_str(), accesses.data(), accesses.size()));
    emulatedCudaElapse(stream, ns);
    const std::lock_guard<std::mutex> lock(total().mutex);
    total().flops += work.flops;
    total().bytes += work.bytes;
    total().ns += ns;
  }
};

void run_captured(void* closure, cudaStream_t stream) {
  (*static_cast<const Launch*>(closure))(stream);
}

void destroy_captured(void* closure) {
  delete static_cast<Launch*>(closure);
}

// A copy's time is that of the way it takes.
double copy_ns(
    const at::Tensor& to,
    const at::Tensor& from,
    double otherwise,
    const EmulatedGpu& gpu) {
  if (to.device() == from.device()) {
    return otherwise;
  }
  const double bandwidth =
      from.is_cpu() ? gpu.host_bandwidth : gpu.peer_bandwidth;
  return std::max(
      otherwise, static_cast<double>(from.nbytes()) / bandwidth * 1e9);
}

} // namespace

void take_time(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    Stack& stack,
    c10::DeviceIndex device) {
  const size_t first = stack.size() - op.schema().arguments().size();
  const bool is_copy = info.name == "aten::copy_";
  TORCH_CHECK(
      !depends_on_values(info, stack, first) &&
          !(is_copy && stack[first].toTensor().is_cpu()),
      "emulated CUDA: nothing is computed in timing mode, so ",
      is_copy ? "a copy to the host" : info.name,
      " has no values to give; its result, or the size of its result, depends "
      "on the contents of device memory");
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
  take_random_state(info, stack, first, device);

  Aliases aliases(c10::kMeta);
  Stack meta = with_aliases(stack, first, aliases);
  infer_shapes(op, info, meta);
  aliases.carry_back_resizes();
  Results results(aliases, device);
  Stack cuda;
  for (const c10::IValue& value : meta) {
    cuda.push_back(results.to_cuda(value));
  }

  auto launch = std::make_unique<Launch>();
  launch->name = info.name;
  for (size_t i = 0; i < info.writes.size(); ++i) {
    for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
      if (tensor.is_cuda()) {
        const Extent extent = extent_of(tensor);
        launch->accesses.push_back({extent.begin, extent.size, info.writes[i]});
      }
    });
  }
  for (const at::Tensor& tensor : results.fresh()) {
    const Extent extent = extent_of(tensor);
    launch->accesses.push_back({extent.begin, extent.size, 1});
  }
  const c10::ArrayRef<c10::IValue> arguments(
      stack.data() + first, stack.size() - first);
  launch->work = work_of(op, info, arguments, results.fresh());
  const EmulatedGpu& gpu = *emulatedCudaGpu(device);
  launch->ns = duration_ns(launch->work, gpu);
  if (is_copy) {
    launch->ns = copy_ns(
        arguments[0].toTensor(), arguments[1].toTensor(), launch->ns, gpu);
  }
  const bool is_view = results.fresh().empty() && !info.writes_any;
  if (!is_view) {
    if (emulatedCudaIsCapturing(stream) != 0) {
      check(emulatedCudaCapture(
          stream, &run_captured, &destroy_captured, launch.release()));
    } else {
      (*launch)(stream);
    }
  }
  stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  stack.insert(stack.end(), cuda.begin(), cuda.end());
}

} // namespace emulated_cuda

// What was launched in this process so far, all devices together:
// floating-point operations, bytes and nanoseconds.
extern "C" __attribute__((visibility("default"))) void emulated_cuda_work(
    double* flops,
    double* bytes,
    double* ns) {
  const std::lock_guard<std::mutex> lock(emulated_cuda::total().mutex);
  *flops = emulated_cuda::total().flops;
  *bytes = emulated_cuda::total().bytes;
  *ns = emulated_cuda::total().ns;
}
