#pragma once

#include "Aliases.h"
#include "EmulatedCuda.h"
#include "Random.h"
#include "Substitutes.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace emulated_cuda {

// What the executor knows of an op, found once.
struct OpInfo {
  std::string name; // "aten::add_.Tensor"
  Substitute substitute = nullptr;
  bool is_random = false;
  int generator_arg = -1;
  std::vector<bool> writes; // by argument
  bool writes_any = false;
  // Its result, or its result's shape, is known to the host when it returns.
  bool waits = false;
  bool takes_host_tensors = false; // of any size, beside device tensors

  static const OpInfo& of(const c10::OperatorHandle& op);
};

// How an op is run: see ExecuteMode.cpp and TimingMode.cpp. Takes the op's
// CUDA arguments from the stack and puts its CUDA results there. The current
// device is that of the arguments.
void execute(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    torch::jit::Stack& stack,
    c10::DeviceIndex device);
void take_time(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    torch::jit::Stack& stack,
    c10::DeviceIndex device);

// For an op that draws random numbers; the others take nothing.
at::PhiloxCudaState take_random_state(
    const OpInfo& info,
    const torch::jit::Stack& stack,
    size_t first,
    c10::DeviceIndex device);

// Everything above a backend's kernels: an op that comes to the executor has
// been through that.
inline const c10::DispatchKeySet kAboveKernels =
    c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
    c10::DispatchKeySet(
        {c10::DispatchKey::ADInplaceOrView,
         c10::DispatchKey::Functionalize,
         c10::DispatchKey::Python,
         c10::DispatchKey::PythonTLSSnapshot,
         c10::DispatchKey::Fake});

// Puts ops in the place of PyTorch's own calls of cuDNN for recurrent layers.
void override_recurrent_layers();

// An error of the emulated runtime becomes the exception that says so.
void check(cudaError_t error);

} // namespace emulated_cuda
