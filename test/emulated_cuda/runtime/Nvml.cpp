// The management library, as far as PyTorch asks it: how many devices there
// are, and who uses how much of their memory. Without it a machine's real one
// would answer.
#include "EmulatedCuda.h"

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int device_count() {
  // CUDA_VISIBLE_DEVICES does not count here.
  const char* devices = std::getenv("EMULATED_CUDA_DEVICES");
  return devices == nullptr || *devices == '\0' ? 1 : std::atoi(devices);
}

nvmlDevice_t handle_of(int device) {
  return reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(device) + 1);
}

int device_of(nvmlDevice_t handle) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(handle)) - 1;
}

} // namespace

extern "C" {

nvmlReturn_t nvmlInit(void) {
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) {
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(device_count());
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(
    unsigned index,
    nvmlDevice_t* device) {
  if (index >= static_cast<unsigned>(device_count())) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = handle_of(static_cast<int>(index));
  return NVML_SUCCESS;
}

// As cudaDeviceGetPCIBusId has it, with a domain of four or eight digits.
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(
    const char* id,
    nvmlDevice_t* device) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(id, "%x:%x:", &domain, &bus) != 2 || domain != 0 ||
      bus == 0 || bus > static_cast<unsigned>(device_count())) {
    return NVML_ERROR_NOT_FOUND;
  }
  *device = handle_of(static_cast<int>(bus) - 1);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(
    nvmlDevice_t device,
    char* text,
    unsigned length) {
  std::snprintf(
      text, length, "GPU-00000000-0000-0000-0000-%012x", device_of(device));
  return NVML_SUCCESS;
}

// The version 1 of it, by its name in the library.
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(
    nvmlDevice_t device,
    unsigned* count,
    nvmlProcessInfo_v1_t* processes) {
  if (*count == 0) {
    *count = 1;
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  *count = 1;
  processes[0].pid = static_cast<unsigned>(getpid());
  processes[0].usedGpuMemory = emulatedCudaAllocated(device_of(device));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(
    nvmlDevice_t,
    unsigned,
    nvmlIntNvLinkDeviceType_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(
    nvmlDevice_t,
    unsigned,
    nvmlPciInfo_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
  case NVML_SUCCESS:
    return "Success";
  case NVML_ERROR_INVALID_ARGUMENT:
    return "Invalid Argument";
  case NVML_ERROR_NOT_FOUND:
    return "Not Found";
  case NVML_ERROR_INSUFFICIENT_SIZE:
    return "Insufficient Size";
  default:
    return "Not Supported";
  }
}

} // extern "C"
