// cudart: devices, errors and versions.
#include "Machine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

using namespace emulated_cuda;

namespace {

bool is_device(int device) {
  return device >= 0 && device < settings().devices;
}

} // namespace

extern "C" {

const EmulatedGpu* emulatedCudaGpu(int device) {
  return is_device(device) ? &settings().gpu : nullptr;
}

int emulatedCudaIsTiming(void) {
  return settings().timing ? 1 : 0;
}

const char* emulatedCudaReport(void) {
  return this_thread().report.c_str();
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().devices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = this_thread().device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) {
    return fail(cudaErrorInvalidDevice);
  }
  this_thread().device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* prop, int device) {
  if (!is_device(device)) {
    return fail(cudaErrorInvalidDevice);
  }
  const EmulatedGpu& gpu = settings().gpu;
  *prop = cudaDeviceProp{};
  std::snprintf(prop->name, sizeof prop->name, "%s (emulated)", gpu.product);
  std::memset(&prop->uuid, 0, sizeof prop->uuid);
  prop->uuid.bytes[15] = static_cast<char>(device);
  prop->totalGlobalMem = settings().capacity;
  prop->sharedMemPerBlock = 48 << 10;
  prop->sharedMemPerBlockOptin = 227 << 10;
  prop->sharedMemPerMultiprocessor = 228 << 10;
  prop->regsPerBlock = prop->regsPerMultiprocessor = 65536;
  prop->warpSize = 32;
  prop->memPitch = 2147483647;
  prop->maxThreadsPerBlock = 1024;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
  prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = 2147483647;
  prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
  prop->clockRate = 1000000;
  prop->totalConstMem = 65536;
  prop->major = gpu.major;
  prop->minor = gpu.minor;
  prop->textureAlignment = 512;
  prop->multiProcessorCount = gpu.multiprocessors;
  prop->canMapHostMemory = 1;
  prop->concurrentKernels = 1;
  prop->pciDeviceID = device + 1;
  prop->asyncEngineCount = 3;
  prop->unifiedAddressing = 1;
  prop->memoryBusWidth = 5120;
  prop->l2CacheSize = 50 << 20;
  prop->maxThreadsPerMultiProcessor = 2048;
  prop->maxBlocksPerMultiProcessor = 32;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(
    int* value,
    cudaDeviceAttr attr,
    int device) {
  if (!is_device(device)) {
    return fail(cudaErrorInvalidDevice);
  }
  cudaDeviceProp prop;
  cudaGetDeviceProperties_v2(&prop, device);
  switch (attr) {
  case cudaDevAttrMaxThreadsPerBlock:
    *value = prop.maxThreadsPerBlock;
    return cudaSuccess;
  case cudaDevAttrMultiProcessorCount:
    *value = prop.multiProcessorCount;
    return cudaSuccess;
  case cudaDevAttrComputeCapabilityMajor:
    *value = prop.major;
    return cudaSuccess;
  case cudaDevAttrComputeCapabilityMinor:
    *value = prop.minor;
    return cudaSuccess;
  case cudaDevAttrMaxSharedMemoryPerBlock:
    *value = static_cast<int>(prop.sharedMemPerBlock);
    return cudaSuccess;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    *value = static_cast<int>(prop.sharedMemPerBlockOptin);
    return cudaSuccess;
  case cudaDevAttrWarpSize:
    *value = prop.warpSize;
    return cudaSuccess;
  case cudaDevAttrUnifiedAddressing:
    *value = 1;
    return cudaSuccess;
  case cudaDevAttrHostRegisterSupported:
    *value = 1;
    return cudaSuccess;
  // Managed memory, pools and the like are not there.
  case cudaDevAttrMemoryPoolsSupported:
  case cudaDevAttrManagedMemory:
  case cudaDevAttrConcurrentManagedAccess:
  case cudaDevAttrPageableMemoryAccess:
    *value = 0;
    return cudaSuccess;
  default:
    return unsupported("cudaDeviceGetAttribute (of this attribute)");
  }
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!is_device(device)) {
    return fail(cudaErrorInvalidDevice);
  }
  std::snprintf(text, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) {
    return fail(cudaErrorInvalidDevice);
  }
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return is_device(peer) ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) {
    *least = 0;
  }
  if (greatest != nullptr) {
    *greatest = -5;
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  return std::exchange(this_thread().last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError(void) {
  return this_thread().last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NAME(code) \
  case code:       \
    return #code
    NAME(cudaSuccess);
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInvalidDevice);
    NAME(cudaErrorInvalidResourceHandle);
    NAME(cudaErrorIllegalState);
    NAME(cudaErrorNotReady);
    NAME(cudaErrorIllegalAddress);
    NAME(cudaErrorNotSupported);
    NAME(cudaErrorStreamCaptureUnsupported);
    NAME(cudaErrorStreamCaptureInvalidated);
    NAME(cudaErrorStreamCaptureMerge);
    NAME(cudaErrorStreamCaptureUnmatched);
    NAME(cudaErrorStreamCaptureIsolation);
    NAME(cudaErrorHostMemoryNotRegistered);
#undef NAME
  default:
    return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = error == cudaErrorMemoryAllocation ? "out of memory"
                                            : cudaGetErrorName(error);
  const std::string& report = this_thread().report;
  if (error != cudaSuccess && error != cudaErrorNotReady &&
      error != cudaErrorMemoryAllocation && !report.empty()) {
    text += " (emulated CUDA: " + report + ")";
  }
  return text.c_str();
}

cudaError_t cudaProfilerStart(void) {
  return cudaSuccess;
}

cudaError_t cudaProfilerStop(void) {
  return cudaSuccess;
}

} // extern "C"
