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

// Puts ops in the place of PyTorch's own calls of cuDNN for recurrent layers.
void override_recurrent_layers();

// An error of the emulated runtime becomes the exception that says so.
void check(cudaError_t error);

} // namespace emulated_cuda
