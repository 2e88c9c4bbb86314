#include "DeviceBytes.h"

#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/fill_ops.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

namespace at::remat {

namespace {

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

// A tensor over bytes that someone else owns.
at::Tensor over(const at::DataPtr& bytes, size_t nbytes) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      nbytes,
      at::DataPtr(bytes.get(), bytes.device()),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), kCuda, caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<int64_t>(nbytes)});
  return tensor;
}

} // namespace

c10::Allocator& allocator_of(c10::Device device) {
  return device.is_cpu() ? *c10::GetCPUAllocator()
                         : *at::detail::getCUDAHooks().getCUDADeviceAllocator();
}

at::DataPtr allocate_bytes(size_t nbytes, c10::Device device) {
  const c10::DeviceGuard guard(device);
  return allocator_of(device).allocate(nbytes);
}

at::DataPtr copy_bytes(const at::DataPtr& from, size_t nbytes) {
  at::DataPtr copy = allocate_bytes(nbytes, from.device());
  if (from.device().is_cpu()) {
    std::memcpy(copy.get(), from.get(), nbytes);
    return copy;
  }
  const c10::DeviceGuard guard(from.device());
  at::Tensor target = over(copy, nbytes);
  at::_ops::copy_::redispatch(
      kCuda, target, over(from, nbytes), /*non_blocking=*/true);
  return copy;
}

void fill_with_zeros(at::DataPtr& bytes, size_t nbytes) {
  if (bytes.device().is_cpu()) {
    std::memset(bytes.get(), 0, nbytes);
    return;
  }
  const c10::DeviceGuard guard(bytes.device());
  at::Tensor target = over(bytes, nbytes);
  at::_ops::fill__Scalar::redispatch(kCuda, target, 0);
}

} // namespace at::remat
