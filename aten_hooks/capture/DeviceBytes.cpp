#include "DeviceBytes.h"

#include "RematKey.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zero.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

namespace at::remat {

namespace {

void keep(void*) {}

// A tensor over bytes that someone else owns.
at::Tensor over(void* address, size_t nbytes, c10::Device device) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      nbytes,
      at::DataPtr(address, nullptr, &keep, device),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(
          device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU),
      caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<int64_t>(nbytes)});
  return tensor;
}

} // namespace

at::DataPtr allocate_bytes(size_t nbytes, c10::Device device) {
  const c10::DeviceGuard guard(device);
  return c10::GetAllocator(device.type())->allocate(nbytes);
}

at::DataPtr copy_bytes(const at::DataPtr& from, size_t nbytes) {
  at::DataPtr copy = allocate_bytes(nbytes, from.device());
  if (from.device().is_cpu()) {
    std::memcpy(copy.get(), from.get(), nbytes);
    return copy;
  }
  const c10::DeviceGuard guard(from.device());
  const at::AutoDispatchBelowADInplaceOrView below;
  const NoCaptureGuard no_capture;
  over(copy.get(), nbytes, from.device())
      .copy_(over(from.get(), nbytes, from.device()));
  return copy;
}

void fill_with_zeros(at::DataPtr& bytes, size_t nbytes) {
  if (bytes.device().is_cpu()) {
    std::memset(bytes.get(), 0, nbytes);
    return;
  }
  const c10::DeviceGuard guard(bytes.device());
  const at::AutoDispatchBelowADInplaceOrView below;
  const NoCaptureGuard no_capture;
  over(bytes.get(), nbytes, bytes.device()).zero_();
}

} // namespace at::remat
