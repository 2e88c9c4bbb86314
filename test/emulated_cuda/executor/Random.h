#pragma once

#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <cstdint>

namespace emulated_cuda {

// Note [Random numbers]
// A random op takes a seed and an offset from the CUDA generator, which moves
// on by kOffsetsPerOp, as a kernel on a GPU does. Its numbers are those of a
// CPU generator seeded with both: other numbers than on a GPU, but as there the
// same for the same seed and offset, however often and in whatever order.
constexpr uint64_t kOffsetsPerOp = 4;

struct SeedAndOffset {
  uint64_t seed;
  uint64_t offset;
};

// Where a random op finds its seed and offset; while a graph is captured they
// are in memory that each launch of the graph fills in.
at::PhiloxCudaState take_random_state(
    const std::optional<at::Generator>& given,
    c10::DeviceIndex device);
SeedAndOffset read(const at::PhiloxCudaState& state);

at::Generator cpu_generator(SeedAndOffset state);

// The CPU's default generator gives the numbers of `state` while this lives,
// for ops that take no generator. One at a time in the process.
class DefaultGeneratorSwap {
 public:
  explicit DefaultGeneratorSwap(SeedAndOffset state);
  ~DefaultGeneratorSwap();
  DefaultGeneratorSwap(const DefaultGeneratorSwap&) = delete;
  DefaultGeneratorSwap& operator=(const DefaultGeneratorSwap&) = delete;

 private:
  c10::intrusive_ptr<c10::GeneratorImpl> before_;
};

} // namespace emulated_cuda
