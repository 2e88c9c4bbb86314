#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>

namespace at::remat {

// Bytes on any device, in the order of its current stream. The copying and
// filling are ops that are not captured.

at::DataPtr allocate_bytes(size_t nbytes, c10::Device device);
// Throws c10::OutOfMemoryError.
at::DataPtr copy_bytes(const at::DataPtr& from, size_t nbytes);
void fill_with_zeros(at::DataPtr& bytes, size_t nbytes);

} // namespace at::remat
