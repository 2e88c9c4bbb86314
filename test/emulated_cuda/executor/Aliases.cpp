#include "Aliases.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Allocator.h>

#include <cstring>

namespace emulated_cuda {

namespace {

char* data_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.storage()
                                .unsafeGetStorageImpl()
                                ->_mutable_data_ptr_no_checks()
                                .get());
}

void keep(void*) {}

at::Tensor over(const at::Tensor& tensor, const c10::Storage& storage) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(
          storage.device_type() == c10::kMeta ? c10::DispatchKey::Meta
                                              : c10::DispatchKey::CPU),
      tensor.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  result._set_conj(tensor.is_conj());
  result._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  return result;
}

} // namespace

Extent extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return {nullptr, 0};
  }
  int64_t last = 0; // strides are not negative
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const size_t item = tensor.dtype().itemsize();
  return {data_of(tensor) + tensor.storage_offset() * item, (last + 1) * item};
}

at::Tensor Aliases::alias_of(const at::Tensor& tensor) {
  for (size_t i = 0; i < originals_.size(); ++i) {
    if (originals_[i].is_same(tensor)) {
      return aliases_[i];
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == at::kStrided && !tensor.is_quantized() &&
          !tensor.is_nested() && !tensor.is_sparse(),
      "emulated CUDA: only dense tensors are supported, got ",
      tensor.toString());
  c10::Storage storage;
  for (size_t i = 0; i < originals_.size() && !storage; ++i) {
    if (originals_[i].storage().is_alias_of(tensor.storage())) {
      storage = aliases_[i].storage();
    }
  }
  if (!storage) {
    storage = c10::Storage(
        c10::Storage::use_byte_size_t(),
        tensor.storage().nbytes(),
        device_ == c10::kMeta
            ? at::DataPtr(nullptr, c10::kMeta)
            : at::DataPtr(data_of(tensor), nullptr, &keep, c10::kCPU),
        c10::GetAllocator(device_),
        /*resizable=*/true);
  }
  originals_.push_back(tensor);
  aliases_.push_back(over(tensor, storage));
  return aliases_.back();
}

at::Tensor Aliases::original_of(const at::Tensor& alias) const {
  for (size_t i = 0; i < aliases_.size(); ++i) {
    if (aliases_[i].is_same(alias)) {
      return originals_[i];
    }
  }
  return {};
}

at::Tensor Aliases::view_for(const at::Tensor& result) const {
  for (size_t i = 0; i < aliases_.size(); ++i) {
    if (!aliases_[i].storage().is_alias_of(result.storage())) {
      continue;
    }
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(originals_[i].storage()),
        c10::DispatchKeySet(c10::DispatchKey::CUDA),
        result.dtype());
    view.unsafeGetTensorImpl()->set_storage_offset(result.storage_offset());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(
        result.sizes(), result.strides());
    return view;
  }
  return {};
}

void Aliases::carry_back_resizes() {
  for (size_t i = 0; i < originals_.size(); ++i) {
    const at::Tensor& original = originals_[i];
    const at::Tensor& alias = aliases_[i];
    const bool same_geometry = original.sizes() == alias.sizes() &&
        original.strides() == alias.strides();
    const bool same_buffer = device_ == c10::kMeta
        ? original.storage().nbytes() >= alias.storage().nbytes()
        : data_of(original) == data_of(alias);
    if (same_geometry && same_buffer) {
      continue;
    }
    if (!same_buffer) {
      original.resize_(alias.sizes()); // grows the storage
    }
    original.unsafeGetTensorImpl()->set_sizes_and_strides(
        alias.sizes(), alias.strides());
    if (!same_buffer && device_ == c10::kCPU) {
      const Extent to = extent_of(original);
      std::memcpy(to.begin, extent_of(alias).begin, to.size);
    }
  }
}

torch::jit::Stack with_aliases(
    const torch::jit::Stack& stack,
    size_t first,
    Aliases& aliases) {
  const auto convert = [&](const at::Tensor& tensor) {
    return aliases.stands_for(tensor) ? aliases.alias_of(tensor) : tensor;
  };
  torch::jit::Stack result;
  for (size_t i = first; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      result.emplace_back(convert(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(convert(tensor));
      }
      result.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor :
           value.toOptionalTensorVector()) {
        list.push_back(
            tensor.has_value() ? std::make_optional(convert(*tensor))
                               : std::nullopt);
      }
      result.emplace_back(std::move(list));
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      result.emplace_back(c10::Device(aliases.device()));
    } else {
      result.push_back(value);
    }
  }
  return result;
}

} // namespace emulated_cuda
