#pragma once

#include "Aliases.h"

#include <vector>

namespace emulated_cuda {

// Turns what a kernel of the aliases' device returned into what the program
// gets: its own CUDA tensors, views of them, or fresh ones of the same layout.
class Results {
 public:
  Results(Aliases& aliases, c10::DeviceIndex device)
      : aliases_(aliases), device_(device) {}

  // May allocate.
  c10::IValue to_cuda(const c10::IValue& value);
  // Gives the fresh ones their bytes, which the kernel left on the CPU.
  void copy_bytes() const;

  const std::vector<at::Tensor>& fresh() const {
    return fresh_;
  }
  // What each fresh one stands for.
  const std::vector<at::Tensor>& sources() const {
    return sources_;
  }

 private:
  at::Tensor to_cuda(const at::Tensor& result);

  Aliases& aliases_;
  const c10::DeviceIndex device_;
  std::vector<at::Tensor> fresh_, sources_;
};

} // namespace emulated_cuda
