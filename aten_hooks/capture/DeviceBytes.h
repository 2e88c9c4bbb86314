#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>

namespace at::remat {

// Bytes on any device, in the order of its current stream. Copying and filling
// are kernels called below all that looks at ops.

// The allocator of the CPU, or PyTorch's of a CUDA device.
c10::Allocator& allocator_of(c10::Device device);

at::DataPtr allocate_bytes(size_t nbytes, c10::Device device);
// Throws c10::OutOfMemoryError.
at::DataPtr copy_bytes(const at::DataPtr& from, size_t nbytes);
void fill_with_zeros(at::DataPtr& bytes, size_t nbytes);

} // namespace at::remat
