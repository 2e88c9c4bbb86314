#pragma once

// What the stand-in libcudart.so.12 exports beside CUDA's own functions: how
// the executor tells it what an op reads and writes, and how tests make it
// fail. All functions are thread-safe.

#include <cuda_runtime_api.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A named GPU. Peak rates are those of its data sheet, without sparsity.
struct EmulatedGpu {
  const char* name; // "h100-80gb"
  const char* product; // what cudaDeviceProp::name says
  size_t memory; // bytes
  int multiprocessors;
  int major, minor; // compute capability
  double bandwidth; // bytes per second
  double flops_fp64, flops_fp32; // per second, without tensor cores
  double flops_tf32, flops_fp16; // per second, on tensor cores
  double host_bandwidth; // bytes per second to and from the host, one way
  double peer_bandwidth; // bytes per second to another device, one way
};

// Bytes that an op touches.
struct EmulatedAccess {
  const void* address;
  size_t size;
  int is_write;
};

// The profile of `device`; null if there is no such device.
const struct EmulatedGpu* emulatedCudaGpu(int device);
// Nothing is computed and device memory has no bytes.
int emulatedCudaIsTiming(void);

// An op named `name` starts on `stream`. Checks that all bytes are allocated
// and not poisoned, and that whoever wrote (or read) them before on another
// stream was waited for. An error other than cudaSuccess says that it was not
// so; emulatedCudaReport() says what was wrong.
cudaError_t emulatedCudaLaunch(
    cudaStream_t stream,
    const char* name,
    const struct EmulatedAccess* accesses,
    size_t count);
// The op just launched on `stream` took so long.
void emulatedCudaElapse(cudaStream_t stream, double ns);
// What this thread's last failed call found.
const char* emulatedCudaReport(void);

// While `stream` is being captured, work on it is not done but told to the
// graph, which calls `run` on each launch and `destroy` at its end.
int emulatedCudaIsCapturing(cudaStream_t stream);
cudaError_t emulatedCudaCapture(
    cudaStream_t stream,
    void (*run)(void* closure, cudaStream_t stream),
    void (*destroy)(void* closure),
    void* closure);
// The capture on `stream` cannot go on: ending it will fail.
void emulatedCudaInvalidateCapture(cudaStream_t stream, const char* reason);

// A caching allocator has given out, or taken back, a part of an allocation.
// What is taken back is poisoned: filled with 0xFB, and reported when touched.
void emulatedCudaMarkInUse(const void* address, size_t size);
void emulatedCudaMarkFree(const void* address, size_t size);

// After `skip` more allocations on `device` the next `count` fail for lack of
// memory.
void emulatedCudaFailAllocations(int device, int skip, int count);
// Bytes allocated on `device`, and the most so far.
size_t emulatedCudaAllocated(int device);
size_t emulatedCudaPeakAllocated(int device);

// Virtual memory, for the stand-in libcuda.so.1; see the driver API.
cudaError_t emulatedCudaReserve(size_t size, void** address);
cudaError_t emulatedCudaUnreserve(void* address, size_t size);
cudaError_t emulatedCudaCreate(int device, size_t size, uint64_t* handle);
cudaError_t emulatedCudaRelease(uint64_t handle);
cudaError_t emulatedCudaMap(void* address, size_t size, uint64_t handle);
cudaError_t emulatedCudaUnmap(void* address, size_t size);
cudaError_t emulatedCudaAllowAccess(void* address, size_t size);

#ifdef __cplusplus
}
#endif
