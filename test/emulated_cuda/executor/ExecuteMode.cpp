// Execute mode: an op runs on the CPU, over device memory.
#include "EmulatedCuda.h"
#include "Executor.h"
#include "Results.h"

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

namespace emulated_cuda {

namespace {

using torch::jit::Stack;

bool is_narrow(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

// The stack with half precision in float, for CPU kernels without it. Written
// arguments get their results back.
class Widened {
 public:
  Widened(const Stack& stack, const OpInfo& info) : info_(info) {
    for (const c10::IValue& value : stack) {
      wide_.push_back(convert(value));
    }
  }

  bool found_any() const {
    return !narrow_.empty();
  }

  Stack run(const c10::OperatorHandle& op) {
    Stack results = wide_;
    op.callBoxed(&results);
    for (size_t i = 0; i < narrow_.size() && info_.writes_any; ++i) {
      if (narrow_[i].dim() > 0) {
        narrow_[i].resize_(made_[i].sizes());
      }
      narrow_[i].copy_(made_[i]);
    }
    for (c10::IValue& value : results) {
      value = narrowed(value);
    }
    return results;
  }

 private:
  at::Tensor widened(const at::Tensor& tensor) {
    if (!tensor.defined() || !is_narrow(tensor.scalar_type())) {
      return tensor;
    }
    for (size_t i = 0; i < narrow_.size(); ++i) {
      if (narrow_[i].is_same(tensor)) {
        return made_[i];
      }
    }
    type_ = tensor.scalar_type();
    narrow_.push_back(tensor);
    made_.push_back(tensor.to(at::kFloat));
    return made_.back();
  }

  c10::IValue convert(const c10::IValue& value) {
    if (value.isTensor()) {
      return widened(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(widened(tensor));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(
            tensor.has_value() ? std::make_optional(widened(*tensor))
                               : std::nullopt);
      }
      return list;
    }
    return value;
  }

  c10::IValue narrowed(const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) {
      for (size_t i = 0; i < made_.size(); ++i) {
        if (made_[i].is_same(value.toTensor())) {
          return narrow_[i];
        }
      }
      if (value.toTensor().scalar_type() == at::kFloat) {
        return value.toTensor().to(type_);
      }
    }
    return value;
  }

  const OpInfo& info_;
  at::ScalarType type_ = at::kHalf;
  Stack wide_;
  std::vector<at::Tensor> narrow_, made_;
};

bool lacks_dtype(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.find("not implemented for '") != std::string::npos ||
      text.find("not supported for 'Half'") != std::string::npos ||
      text.find("not supported for 'BFloat16'") != std::string::npos;
}

// Runs the op on CPU arguments; results replace them.
void run_on_cpu(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    Stack& stack,
    SeedAndOffset random) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  if (info.substitute != nullptr) {
    info.substitute(stack, random);
    return;
  }
  if (info.generator_arg >= 0) {
    stack[info.generator_arg] = cpu_generator(random);
  }
  std::optional<DefaultGeneratorSwap> swap;
  if (info.is_random && info.generator_arg < 0) {
    swap.emplace(random);
  }
  Stack arguments = stack;
  try {
    op.callBoxed(&stack);
  } catch (const c10::Error& error) {
    Widened wide(arguments, info);
    if (!wide.found_any() || !lacks_dtype(error)) {
      throw;
    }
    stack = wide.run(op);
  }
}

// The bytes of what an op writes, to put them back where it cannot end.
class Undo {
 public:
  void note(const at::Tensor& tensor) {
    const Extent extent = extent_of(tensor);
    if (extent.size > 0) {
      saved_.push_back({extent.begin, std::string(extent.begin, extent.size)});
    }
  }
  void apply() const {
    for (const Saved& saved : saved_) {
      std::memcpy(saved.begin, saved.bytes.data(), saved.bytes.size());
    }
  }

 private:
  struct Saved {
    char* begin;
    std::string bytes;
  };
  std::vector<Saved> saved_;
};

// An op of a captured graph: runs on the addresses that it was captured with.
struct CapturedOp {
  c10::OperatorHandle op;
  const OpInfo& info;
  Stack arguments; // CPU tensors over device memory
  at::PhiloxCudaState random;
  std::vector<std::optional<Extent>> outputs; // by tensor result
  std::vector<EmulatedAccess> accesses;
};

void run_captured(void* closure, cudaStream_t stream) {
  auto& captured = *static_cast<CapturedOp*>(closure);
  const auto& accesses = captured.accesses;
  check(emulatedCudaLaunch(
      stream, captured.info.name.c_str(), accesses.data(), accesses.size()));
  Stack stack = captured.arguments;
  const SeedAndOffset random =
      captured.info.is_random ? read(captured.random) : SeedAndOffset{0, 0};
  run_on_cpu(captured.op, captured.info, stack, random);
  size_t next = 0;
  for (const c10::IValue& value : stack) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      const auto& output = captured.outputs.at(next++);
      if (output.has_value() && output->size > 0) {
        std::memcpy(output->begin, extent_of(tensor).begin, output->size);
      }
    });
  }
}

void destroy_captured(void* closure) {
  delete static_cast<CapturedOp*>(closure);
}

} // namespace

void execute(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    Stack& stack,
    c10::DeviceIndex device) {
  const size_t first = stack.size() - op.schema().arguments().size();
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
  const bool is_capturing = emulatedCudaIsCapturing(stream) != 0;
  TORCH_CHECK(
      !is_capturing || !info.waits,
      "emulated CUDA: operation not permitted when stream is capturing: ",
      info.name);

  std::vector<EmulatedAccess> accesses;
  Undo undo;
  const bool may_undo = is_capturing || info.writes_any;
  for (size_t i = 0; i < info.writes.size(); ++i) {
    for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
      if (tensor.is_cuda() && tensor.layout() == at::kStrided) {
        const Extent extent = extent_of(tensor);
        accesses.push_back({extent.begin, extent.size, info.writes[i]});
        if (may_undo && info.writes[i]) {
          undo.note(tensor);
        }
      }
    });
  }
  if (!is_capturing) {
    check(emulatedCudaLaunch(
        stream, info.name.c_str(), accesses.data(), accesses.size()));
  }

  const at::PhiloxCudaState random_state =
      take_random_state(info, stack, first, device);
  // While a graph is captured the numbers do not matter.
  const SeedAndOffset random = info.is_random && !is_capturing
      ? read(random_state)
      : SeedAndOffset{0, 0};

  Aliases aliases;
  Stack cpu = with_aliases(stack, first, aliases);
  const Stack arguments = is_capturing ? cpu : Stack();
  run_on_cpu(op, info, cpu, random);
  Results results(aliases, device);
  Stack cuda;
  try {
    aliases.carry_back_resizes();
    for (const c10::IValue& value : cpu) {
      cuda.push_back(results.to_cuda(value));
    }
    results.copy_bytes();
  } catch (...) {
    undo.apply(); // as a kernel that was never launched
    throw;
  }

  std::vector<EmulatedAccess> made;
  for (const at::Tensor& tensor : results.fresh()) {
    const Extent extent = extent_of(tensor);
    made.push_back({extent.begin, extent.size, 1});
  }
  if (is_capturing) {
    undo.apply(); // it has not run yet
    auto captured = std::make_unique<CapturedOp>(
        CapturedOp{op, info, arguments, random_state, {}, accesses});
    captured->accesses.insert(
        captured->accesses.end(), made.begin(), made.end());
    for (const c10::IValue& value : cpu) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        std::optional<Extent> output;
        for (size_t i = 0; i < results.sources().size(); ++i) {
          if (results.sources()[i].is_same(tensor)) {
            output = extent_of(results.fresh()[i]);
          }
        }
        captured->outputs.push_back(output);
      });
    }
    check(emulatedCudaCapture(
        stream, &run_captured, &destroy_captured, captured.release()));
  } else {
    if (!made.empty()) {
      check(emulatedCudaLaunch(
          stream, info.name.c_str(), made.data(), made.size()));
    }
    emulatedCudaElapse(stream, 0);
    if (info.waits) {
      check(cudaStreamSynchronize(stream));
    }
  }
  stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  stack.insert(stack.end(), cuda.begin(), cuda.end());
}

} // namespace emulated_cuda
