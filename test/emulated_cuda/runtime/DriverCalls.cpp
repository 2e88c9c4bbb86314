// The driver API: what libc10_cuda looks up, and contexts. All state is in the
// stand-in libcudart.
#include "EmulatedCuda.h"

#include <cuda.h>

#include <cstdio>

namespace {

// The page of a real GPU's virtual memory.
constexpr size_t kGranularity = size_t{2} << 20;

CUresult result_of(cudaError_t error) {
  switch (error) {
  case cudaSuccess:
    return CUDA_SUCCESS;
  case cudaErrorMemoryAllocation:
    (void)cudaGetLastError();
    return CUDA_ERROR_OUT_OF_MEMORY;
  default:
    (void)cudaGetLastError();
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult unsupported(const char* name) {
  std::fprintf(stderr, "emulated CUDA: %s is not supported\n", name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

} // namespace

extern "C" {

CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS           ? "no error"
      : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
      : error == CUDA_ERROR_NOT_SUPPORTED ? "not supported by emulated CUDA"
                                          : "invalid argument";
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(
    int* value,
    CUdevice_attribute attribute,
    CUdevice) {
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    *value = 1;
    return CUDA_SUCCESS;
  // No sharing between processes or devices.
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    *value = 0;
    return CUDA_SUCCESS;
  default:
    return unsupported("cuDeviceGetAttribute (of this attribute)");
  }
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  int device = 0;
  cudaGetDevice(&device);
  return cuDevicePrimaryCtxRetain(context, device);
}

CUresult cuCtxSetCurrent(CUcontext context) {
  const auto number = reinterpret_cast<uintptr_t>(context);
  return number == 0 ? CUDA_SUCCESS
                     : result_of(cudaSetDevice(static_cast<int>(number) - 1));
}

CUresult cuMemGetAllocationGranularity(
    size_t* granularity,
    const CUmemAllocationProp*,
    CUmemAllocationGranularity_flags) {
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(
    CUdeviceptr* address,
    size_t size,
    size_t,
    CUdeviceptr,
    unsigned long long) {
  void* reserved = nullptr;
  const cudaError_t error = emulatedCudaReserve(size, &reserved);
  *address = reinterpret_cast<CUdeviceptr>(reserved);
  return result_of(error);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return result_of(emulatedCudaUnreserve(pointer(address), size));
}

CUresult cuMemCreate(
    CUmemGenericAllocationHandle* handle,
    size_t size,
    const CUmemAllocationProp* prop,
    unsigned long long) {
  if (size % kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t created = 0;
  const cudaError_t error =
      emulatedCudaCreate(prop->location.id, size, &created);
  *handle = created;
  return result_of(error);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return result_of(emulatedCudaRelease(handle));
}

CUresult cuMemMap(
    CUdeviceptr address,
    size_t size,
    size_t offset,
    CUmemGenericAllocationHandle handle,
    unsigned long long) {
  if (offset != 0) {
    return unsupported("cuMemMap (at an offset)");
  }
  return result_of(emulatedCudaMap(pointer(address), size, handle));
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return result_of(emulatedCudaUnmap(pointer(address), size));
}

CUresult cuMemSetAccess(
    CUdeviceptr address,
    size_t size,
    const CUmemAccessDesc*,
    size_t) {
  return result_of(emulatedCudaAllowAccess(pointer(address), size));
}

#define UNSUPPORTED_CALL(name)              \
  CUresult refused_##name(void) asm(#name); \
  CUresult refused_##name(void) {           \
    return unsupported(#name);              \
  }

UNSUPPORTED_CALL(cuFuncGetAttribute)
UNSUPPORTED_CALL(cuFuncSetAttribute)
UNSUPPORTED_CALL(cuLaunchCooperativeKernel)
UNSUPPORTED_CALL(cuLaunchKernel)
UNSUPPORTED_CALL(cuLinkAddData_v2)
UNSUPPORTED_CALL(cuLinkComplete)
UNSUPPORTED_CALL(cuLinkCreate_v2)
UNSUPPORTED_CALL(cuMemExportToShareableHandle)
UNSUPPORTED_CALL(cuMemImportFromShareableHandle)
UNSUPPORTED_CALL(cuMemsetD32Async)
UNSUPPORTED_CALL(cuModuleGetFunction)
UNSUPPORTED_CALL(cuModuleLoadData)
UNSUPPORTED_CALL(cuModuleLoadDataEx)
UNSUPPORTED_CALL(cuModuleUnload)
UNSUPPORTED_CALL(cuMulticastAddDevice)
UNSUPPORTED_CALL(cuMulticastBindMem)
UNSUPPORTED_CALL(cuMulticastCreate)
UNSUPPORTED_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor)
UNSUPPORTED_CALL(cuStreamWriteValue32)
UNSUPPORTED_CALL(cuTensorMapEncodeTiled)

} // extern "C"
