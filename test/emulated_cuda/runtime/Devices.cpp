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

struct KnownError {
  cudaError_t code;
  const char* name;
  const char* text; // CUDA's own
};

#define ERROR(code, text) \
  { code, #code, text }
const KnownError kErrors[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(
        cudaErrorIllegalState,
        "the operation cannot be performed in the present state"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(
        cudaErrorHostMemoryAlreadyRegistered,
        "part or all of the requested memory range is already mapped"),
    ERROR(
        cudaErrorHostMemoryNotRegistered,
        "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(
        cudaErrorStreamCaptureUnsupported,
        "operation not permitted when stream is capturing"),
    ERROR(
        cudaErrorStreamCaptureInvalidated,
        "operation failed due to a previous error during capture"),
    ERROR(
        cudaErrorStreamCaptureMerge,
        "operation would result in a merge of separate capture sequences"),
    ERROR(
        cudaErrorStreamCaptureUnmatched,
        "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(
        cudaErrorStreamCaptureIsolation,
        "dependency created on uncaptured work in another stream"),
    ERROR(
        cudaErrorCapturedEvent,
        "operation not permitted on an event last recorded in a capturing stream"),
};
#undef ERROR

const KnownError* find(cudaError_t error) {
  for (const KnownError& known : kErrors) {
    if (known.code == error) {
      return &known;
    }
  }
  return nullptr;
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
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
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
  prop->uuid.bytes[15] = static_cast<char>(device);
  prop->totalGlobalMem = settings().total_memory();
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
  prop->pciBusID = device + 1;
  prop->asyncEngineCount = 3;
  prop->unifiedAddressing = 1;
  prop->memoryBusWidth = 5120;
  // Two transfers per clock, in kHz, give the bandwidth.
  prop->memoryClockRate =
      static_cast<int>(gpu.bandwidth / (2e3 * prop->memoryBusWidth / 8));
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
  case cudaDevAttrMemoryClockRate:
    *value = prop.memoryClockRate;
    return cudaSuccess;
  case cudaDevAttrGlobalMemoryBusWidth:
    *value = prop.memoryBusWidth;
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
  const KnownError* known = find(error);
  return known == nullptr ? "unrecognized error code" : known->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const KnownError* known = find(error);
  const ThreadState& thread = this_thread();
  const char* text = known == nullptr ? "unrecognized error code" : known->text;
  if (error != thread.reported || thread.report.empty()) {
    return text;
  }
  static thread_local std::string longer;
  longer = std::string(text) + " (emulated CUDA: " + thread.report + ")";
  return longer.c_str();
}

cudaError_t cudaProfilerStart(void) {
  return cudaSuccess;
}

cudaError_t cudaProfilerStop(void) {
  return cudaSuccess;
}

} // extern "C"
