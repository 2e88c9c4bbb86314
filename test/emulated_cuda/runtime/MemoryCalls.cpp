// cudart: memory and copies.
#include "DriverCosts.h"
#include "Machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

using namespace emulated_cuda;

namespace {

using Lock = std::lock_guard<std::mutex>;

// -1: the host.
int device_of(const void* address) {
  const Memory::Range* range = Machine::get().memory.find(address);
  return range == nullptr ? -1 : range->device;
}

// Whether it goes where `kind` says; that it may is another question.
bool is_of_kind(const void* to, const void* from, cudaMemcpyKind kind) {
  const Memory& memory = Machine::get().memory;
  const bool to_device = memory.is_device_address(to);
  const bool from_device = memory.is_device_address(from);
  switch (kind) {
  case cudaMemcpyHostToHost:
    return !to_device && !from_device;
  case cudaMemcpyHostToDevice:
    return to_device && !from_device;
  case cudaMemcpyDeviceToHost:
    return !to_device && from_device;
  case cudaMemcpyDeviceToDevice:
    return to_device && from_device;
  case cudaMemcpyDefault:
    return true;
  }
  return false;
}

struct Copy {
  void* to;
  const void* from; // null: fill
  unsigned char value;
  size_t size;
  size_t to_pitch, from_pitch, height; // `size` is of a row

  char* to_row(size_t row) const {
    return static_cast<char*>(to) + row * to_pitch;
  }
  const char* from_row(size_t row) const {
    return static_cast<const char*>(from) + row * from_pitch;
  }
};

// Before the host has its memory for itself again, the devices are waited for.
void forget_host(const void* address) {
  Machine& machine = Machine::get();
  const Memory::Range* range = machine.memory.find(address);
  if (range == nullptr) {
    return;
  }
  for (int device = 0; device < settings().devices; ++device) {
    machine.synchronize_device(device);
  }
  machine.forget(address, range->size);
}

// Needs the lock.
cudaError_t perform(const Copy& copy, CUstream_st& stream) {
  Machine& machine = Machine::get();
  const int to_device = device_of(copy.to);
  const int from_device = copy.from == nullptr ? -1 : device_of(copy.from);
  const bool touches_device = to_device >= 0 || from_device >= 0;
  const size_t rows = copy.height;
  std::vector<EmulatedAccess> accesses;
  for (size_t row = 0; row < rows; ++row) {
    accesses.push_back({copy.to_row(row), copy.size, 1});
    if (copy.from != nullptr) {
      accesses.push_back({copy.from_row(row), copy.size, 0});
    }
  }
  const char* name = copy.from == nullptr ? "memset" : "memcpy";
  // CUDA leaves open what becomes of them.
  const auto distance =
      static_cast<const char*>(copy.from) - static_cast<const char*>(copy.to);
  if (copy.from != nullptr && to_device >= 0 && rows == 1 && distance != 0 &&
      static_cast<size_t>(std::abs(distance)) < copy.size) {
    return fail(cudaErrorInvalidValue, "a copy between addresses that overlap");
  }
  const cudaError_t error =
      machine.launch(stream, name, accesses.data(), accesses.size());
  if (error != cudaSuccess) {
    return error;
  }
  if (settings().timing && from_device >= 0 && to_device < 0) {
    return fail(
        cudaErrorNotSupported,
        "device memory has no bytes in timing mode: nothing can be copied to "
        "the host");
  }
  const EmulatedGpu& gpu = settings().gpu;
  const double bandwidth = copy.from == nullptr ? gpu.bandwidth
      : to_device < 0 || from_device < 0        ? gpu.host_bandwidth
      : to_device != from_device                ? gpu.peer_bandwidth
                                                : gpu.bandwidth / 2;
  if (!settings().timing || !touches_device) {
    for (size_t row = 0; row < rows; ++row) {
      if (copy.from == nullptr) {
        std::memset(copy.to_row(row), copy.value, copy.size);
      } else {
        std::memmove(copy.to_row(row), copy.from_row(row), copy.size);
      }
    }
  }
  machine.elapse(
      stream, static_cast<double>(copy.size * rows) / bandwidth * 1e9);
  return cudaSuccess;
}

void run_copy(void* closure, cudaStream_t stream) {
  const Lock lock(Machine::get().mutex);
  perform(*static_cast<Copy*>(closure), *Machine::get().stream(stream));
}

void destroy_copy(void* closure) {
  delete static_cast<Copy*>(closure);
}

cudaError_t enqueue(
    const Copy& copy,
    cudaStream_t handle,
    bool wait,
    cudaMemcpyKind kind = cudaMemcpyDefault) {
  if (copy.size == 0 || copy.height == 0) {
    return cudaSuccess;
  }
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  if (!is_of_kind(copy.to, copy.from, kind)) {
    return fail(
        cudaErrorInvalidValue, "a copy of another kind than its addresses");
  }
  CUstream_st* stream = machine.stream(handle);
  if (stream == nullptr) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture != nullptr) {
    stream->capture->nodes.push_back(
        std::make_shared<GraphNode>(&run_copy, &destroy_copy, new Copy(copy)));
    return cudaSuccess;
  }
  if (wait) {
    if (const auto error = machine.forbid_in_capture("cudaMemcpy")) {
      return error;
    }
  }
  const cudaError_t error = perform(copy, *stream);
  // Copies to and from pageable memory are staged: the call returns when the
  // host's side is done.
  const auto is_pageable = [&](const void* address) {
    return address != nullptr && machine.memory.find(address) == nullptr;
  };
  if (error == cudaSuccess &&
      (wait || is_pageable(copy.to) || is_pageable(copy.from))) {
    machine.synchronize(*stream);
  }
  return error;
}

} // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, size_t size) {
  *address = nullptr;
  if (size == 0) {
    return cudaSuccess;
  }
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  if (const auto error = machine.forbid_in_capture("cudaMalloc")) {
    return error;
  }
  if (settings().devices == 0) {
    return fail(cudaErrorNoDevice);
  }
  machine.busy_host(kMallocNs);
  *address = machine.memory.allocate(this_thread().device, size);
  return *address == nullptr ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  if (address == nullptr) {
    return cudaSuccess;
  }
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  if (const auto error = machine.forbid_in_capture("cudaFree")) {
    return error;
  }
  const Memory::Range* range = machine.memory.find(address);
  if (range == nullptr || range->kind != Memory::Kind::Device) {
    return fail(cudaErrorInvalidValue, "cudaFree of what is not allocated");
  }
  machine.synchronize_device(range->device);
  machine.busy_host(kFreeNs);
  machine.forget(address, range->size);
  return machine.memory.free(address) ? cudaSuccess
                                      : fail(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  if (settings().devices == 0) {
    return fail(cudaErrorNoDevice);
  }
  *total = settings().total_memory();
  *free = settings().capacity - machine.memory.allocated(this_thread().device);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  *address = machine.memory.allocate_host(size);
  return *address == nullptr ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  forget_host(address);
  return address == nullptr || machine.memory.free_host(address)
      ? cudaSuccess
      : fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  return machine.memory.register_host(address, size)
      ? cudaSuccess
      : fail(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* address) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  forget_host(address);
  return machine.memory.unregister_host(address)
      ? cudaSuccess
      : fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(
    cudaPointerAttributes* attributes,
    const void* address) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  *attributes = cudaPointerAttributes{};
  const Memory::Range* range = machine.memory.find(address);
  attributes->type = range == nullptr ? cudaMemoryTypeUnregistered
      : range->device < 0             ? cudaMemoryTypeHost
                                      : cudaMemoryTypeDevice;
  attributes->device = range == nullptr || range->device < 0
      ? this_thread().device
      : range->device;
  auto* pointer = const_cast<void*>(address);
  attributes->devicePointer = range == nullptr ? nullptr : pointer;
  attributes->hostPointer =
      range != nullptr && range->device < 0 ? pointer : nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(
    void* to,
    const void* from,
    size_t size,
    cudaMemcpyKind kind) {
  return enqueue({to, from, 0, size, size, size, 1}, nullptr, true, kind);
}

cudaError_t cudaMemcpyAsync(
    void* to,
    const void* from,
    size_t size,
    cudaMemcpyKind kind,
    cudaStream_t stream) {
  return enqueue({to, from, 0, size, size, size, 1}, stream, false, kind);
}

cudaError_t cudaMemcpyPeerAsync(
    void* to,
    int,
    const void* from,
    int,
    size_t size,
    cudaStream_t stream) {
  return enqueue({to, from, 0, size, size, size, 1}, stream, false);
}

cudaError_t cudaMemcpy2DAsync(
    void* to,
    size_t to_pitch,
    const void* from,
    size_t from_pitch,
    size_t width,
    size_t height,
    cudaMemcpyKind kind,
    cudaStream_t stream) {
  return enqueue(
      {to, from, 0, width, to_pitch, from_pitch, height}, stream, false, kind);
}

cudaError_t cudaMemset(void* address, int value, size_t size) {
  return enqueue(
      {address, nullptr, static_cast<unsigned char>(value), size, size, 0, 1},
      nullptr,
      false);
}

cudaError_t cudaMemsetAsync(
    void* address,
    int value,
    size_t size,
    cudaStream_t stream) {
  return enqueue(
      {address, nullptr, static_cast<unsigned char>(value), size, size, 0, 1},
      stream,
      false);
}

void emulatedCudaMarkInUse(const void* address, size_t size) {
  const Lock lock(Machine::get().mutex);
  Machine::get().memory.mark_in_use(address, size);
}

void emulatedCudaMarkFree(const void* address, size_t size) {
  const Lock lock(Machine::get().mutex);
  Machine::get().memory.mark_free(address, size);
}

void emulatedCudaFailAllocations(int device, int skip, int count) {
  const Lock lock(Machine::get().mutex);
  Machine::get().memory.fail_allocations(device, skip, count);
}

size_t emulatedCudaAllocated(int device) {
  const Lock lock(Machine::get().mutex);
  return Machine::get().memory.allocated(device);
}

size_t emulatedCudaPeakAllocated(int device) {
  const Lock lock(Machine::get().mutex);
  return Machine::get().memory.peak(device);
}

#define REFUSE_VIRTUAL(condition) \
  return (condition) ? cudaSuccess : fail(cudaErrorInvalidValue)

cudaError_t emulatedCudaReserve(size_t size, void** address) {
  const Lock lock(Machine::get().mutex);
  *address = Machine::get().memory.reserve(size);
  return *address == nullptr ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t emulatedCudaUnreserve(void* address, size_t size) {
  const Lock lock(Machine::get().mutex);
  REFUSE_VIRTUAL(Machine::get().memory.unreserve(address, size));
}

cudaError_t emulatedCudaCreate(int device, size_t size, uint64_t* handle) {
  if (device < 0 || device >= settings().devices) {
    return fail(cudaErrorInvalidDevice);
  }
  const Lock lock(Machine::get().mutex);
  Machine::get().busy_host(kCreateNs);
  *handle = Machine::get().memory.create(device, size);
  return *handle == 0 ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t emulatedCudaRelease(uint64_t handle) {
  const Lock lock(Machine::get().mutex);
  Machine::get().busy_host(kReleaseNs);
  REFUSE_VIRTUAL(Machine::get().memory.release(handle));
}

cudaError_t emulatedCudaMap(void* address, size_t size, uint64_t handle) {
  const Lock lock(Machine::get().mutex);
  Machine::get().busy_host(kMapNs);
  REFUSE_VIRTUAL(Machine::get().memory.map(address, size, handle));
}

cudaError_t emulatedCudaUnmap(void* address, size_t size) {
  const Lock lock(Machine::get().mutex);
  Machine& machine = Machine::get();
  machine.busy_host(kUnmapNs * machine.memory.mappings(address, size));
  machine.forget(address, size);
  REFUSE_VIRTUAL(machine.memory.unmap(address, size));
}

cudaError_t emulatedCudaAllowAccess(void* address, size_t size) {
  const Lock lock(Machine::get().mutex);
  Machine& machine = Machine::get();
  machine.busy_host(kAllowAccessNs * machine.memory.mappings(address, size));
  REFUSE_VIRTUAL(machine.memory.allow_access(address, size));
}

} // extern "C"
