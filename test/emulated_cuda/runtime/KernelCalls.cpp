// cudart: kernels, which cannot run here, and what is not emulated at all.
#include "Machine.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

using namespace emulated_cuda;

namespace {

std::mutex kernels_mutex;

std::map<const void*, const char*>& kernels() {
  static auto* names = new std::map<const void*, const char*>;
  return *names;
}

struct Launch {
  dim3 grid, block;
  size_t shared_memory;
  cudaStream_t stream;
};

std::vector<Launch>& launches() {
  thread_local std::vector<Launch> pushed;
  return pushed;
}

std::string name_of(const void* function) {
  const std::lock_guard<std::mutex> lock(kernels_mutex);
  const auto it = kernels().find(function);
  return it == kernels().end() ? "?" : it->second;
}

cudaError_t refuse_kernel(const void* function) {
  return unsupported(("the kernel " + name_of(function)).c_str());
}

} // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 0;
}
void __cudaRegisterVar(
    void**,
    char*,
    char*,
    const char*,
    int,
    size_t,
    int,
    int) {}
void __cudaRegisterFunction(
    void**,
    const char* host_function,
    char*,
    const char* name,
    int,
    void*,
    void*,
    void*,
    void*,
    int*) {
  const std::lock_guard<std::mutex> lock(kernels_mutex);
  kernels()[host_function] = name;
}

// What a `<<<>>>` says, kept until its stub asks for it.
unsigned __cudaPushCallConfiguration(
    dim3 grid,
    dim3 block,
    size_t shared_memory,
    cudaStream_t stream) {
  launches().push_back({grid, block, shared_memory, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(
    dim3* grid,
    dim3* block,
    size_t* shared_memory,
    void* stream) {
  if (launches().empty()) {
    return fail(cudaErrorMissingConfiguration);
  }
  const Launch launch = launches().back();
  launches().pop_back();
  *grid = launch.grid;
  *block = launch.block;
  *shared_memory = launch.shared_memory;
  *static_cast<cudaStream_t*>(stream) = launch.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(
    const void* function,
    dim3,
    dim3,
    void** arguments,
    size_t,
    cudaStream_t stream) {
  // torch.cuda._sleep: keeps a stream busy for so many cycles, at 1 GHz.
  if (name_of(function).find("spin_kernel") != std::string::npos) {
    const auto cycles = *static_cast<const int64_t*>(arguments[0]);
    const cudaError_t error = emulatedCudaLaunch(stream, "sleep", nullptr, 0);
    emulatedCudaElapse(stream, static_cast<double>(cycles));
    return error;
  }
  return refuse_kernel(function);
}

cudaError_t cudaLaunchKernelExC(
    const cudaLaunchConfig_t*,
    const void* function,
    void**) {
  return refuse_kernel(function);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* function) {
  return refuse_kernel(function);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int) {
  return refuse_kernel(function);
}

} // extern "C"

// Declared by cuda_runtime_api.h with other arguments, which do not matter.
#define STRING(name) #name
#define UNSUPPORTED_CALL(name)                                   \
  extern "C" cudaError_t refused_##name(void) asm(STRING(name)); \
  extern "C" cudaError_t refused_##name(void) {                  \
    return unsupported(#name);                                   \
  }

UNSUPPORTED_CALL(cudaDeviceGetDefaultMemPool)
UNSUPPORTED_CALL(cudaFreeAsync)
UNSUPPORTED_CALL(cudaGraphDebugDotPrint)
UNSUPPORTED_CALL(cudaIpcCloseMemHandle)
UNSUPPORTED_CALL(cudaIpcGetEventHandle)
UNSUPPORTED_CALL(cudaIpcGetMemHandle)
UNSUPPORTED_CALL(cudaIpcOpenEventHandle)
UNSUPPORTED_CALL(cudaIpcOpenMemHandle)
UNSUPPORTED_CALL(cudaMallocAsync)
UNSUPPORTED_CALL(cudaMemPoolGetAttribute)
UNSUPPORTED_CALL(cudaMemPoolSetAccess)
UNSUPPORTED_CALL(cudaMemPoolSetAttribute)
UNSUPPORTED_CALL(cudaMemPoolTrimTo)
UNSUPPORTED_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
