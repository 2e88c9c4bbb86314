#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace emulated_cuda {

// Tensors of another device in the place of CUDA tensors: what the arguments of
// an op are turned into before that device's kernel runs on them, and back
// again. CPU tensors lie over the memory of the CUDA ones; meta tensors have no
// memory, and stand for the host's tensors, too.
class Aliases {
 public:
  explicit Aliases(c10::DeviceType device = c10::kCPU) : device_(device) {}

  c10::DeviceType device() const {
    return device_;
  }
  bool stands_for(const at::Tensor& tensor) const {
    // A number of the host's stays one: it decides no device and no dtype.
    return tensor.defined() &&
        (tensor.is_cuda() ||
         (device_ == c10::kMeta && tensor.is_cpu() && tensor.dim() > 0));
  }

  // The alias of `tensor`, which is a dense CUDA tensor. The same tensor gets
  // the same alias, and storages shared by tensors are shared by their aliases.
  at::Tensor alias_of(const at::Tensor& tensor);

  // The CUDA tensor that `alias` is an alias of; undefined: of none.
  at::Tensor original_of(const at::Tensor& alias) const;
  // For a view that the op made: the same view of the CUDA tensor whose storage
  // `result` shares. Undefined if its storage is fresh.
  at::Tensor view_for(const at::Tensor& result) const;

  // Where the op has given an alias other sizes or another buffer (out=), does
  // the same to its CUDA tensor. May allocate.
  void carry_back_resizes();

  const std::vector<at::Tensor>& originals() const {
    return originals_;
  }

 private:
  c10::DeviceType device_;
  std::vector<at::Tensor> originals_;
  std::vector<at::Tensor> aliases_; // of the originals
};

// The arguments on `stack` from `first` on, with CUDA tensors and devices
// replaced by those of `aliases`. Generators stay as they are.
torch::jit::Stack with_aliases(
    const torch::jit::Stack& stack,
    size_t first,
    Aliases& aliases);

// Calls `function(tensor)` for each defined tensor in `value`.
template <class Function>
void for_each_tensor(const c10::IValue& value, Function&& function) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      function(value.toTensor());
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_tensor(element, function);
    }
  }
}

// The bytes between the first and the last element.
struct Extent {
  char* begin;
  size_t size;
};
Extent extent_of(const at::Tensor& tensor);

} // namespace emulated_cuda
