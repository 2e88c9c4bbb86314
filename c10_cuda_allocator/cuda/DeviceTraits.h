#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#if defined(PYTORCH_C10_DRIVER_API_SUPPORTED) && !defined(USE_ROCM)
#include <c10/cuda/driver_api.h>
#endif

#include <cstddef>

namespace c10::remat {

// The bandwidth of the device's memory.
inline double memory_bytes_per_ns(int device) {
  // As attributes: the properties have no clock rates from CUDA 13 on.
  int kilohertz = 0;
  int bits = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device));
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device));
  const double rate =
      2e3 * kilohertz * bits / 8 / 1e9; // two transfers per clock
  constexpr double kUsual = 500; // where the driver does not say
  return rate > 0 ? rate : kUsual;
}

// Pages of `size` bytes can be mapped in the way of expandable segments. Some
// drivers (of virtual machines, say) cannot.
inline bool can_map_pages([[maybe_unused]] int device, size_t size) {
#if defined(PYTORCH_C10_DRIVER_API_SUPPORTED) && !defined(USE_ROCM)
  const cuda::CUDAGuard guard(static_cast<DeviceIndex>(device));
  C10_CUDA_CHECK(cudaFree(nullptr)); // the driver needs a context
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  auto* driver = cuda::DriverAPI::get();
  CUmemGenericAllocationHandle page = 0;
  if (driver->cuMemCreate_(&page, size, &properties, 0) != CUDA_SUCCESS) {
    return false;
  }
  driver->cuMemRelease_(page);
  return true;
#else
  return size == 0;
#endif
}

} // namespace c10::remat
