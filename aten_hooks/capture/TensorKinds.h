#pragma once

#include "DeviceBytes.h"
#include <ATen/core/Tensor.h>

#include <c10/core/StorageImpl.h>
#include <c10/remat/DeviceMemory.h>

namespace at::remat {

// A tensor whose bytes are those of its storage, and all of it.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == at::kStrided &&
      !tensor.is_quantized() &&
      !tensor.unsafeGetTensorImpl()->key_set().has_any(
          c10::DispatchKeySet(c10::DispatchKey::NestedTensor) |
          c10::DispatchKeySet(c10::DispatchKey::ZeroTensor) |
          c10::DispatchKeySet(c10::DispatchKey::Python) |
          c10::DispatchKeySet(c10::DispatchKey::FuncTorchBatched) |
          c10::DispatchKeySet(c10::DispatchKey::FuncTorchGradWrapper) |
          c10::DispatchKeySet(c10::DispatchKey::Functionalize));
}

inline c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

inline bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 &&
      tensor.is_non_overlapping_and_dense() &&
      static_cast<size_t>(tensor.numel()) * tensor.element_size() ==
      storage_of(tensor).nbytes();
}

// Memory of the device's own allocator, which only tensors write to.
inline bool is_from_allocator(const c10::StorageImpl& storage) {
  const at::DataPtr& data_ptr =
      const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  const c10::Device device = data_ptr.device();
  if (data_ptr.get_deleter() != allocator_of(device).raw_deleter()) {
    return false;
  }
  if (device.is_cpu()) {
    return true;
  }
  const auto* memory = c10::remat::cuda_memory(device.index());
  return memory != nullptr && !memory->is_private(data_ptr.get());
}

inline bool is_sparse_compressed(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc ||
      layout == at::kSparseBsr || layout == at::kSparseBsc;
}

} // namespace at::remat
