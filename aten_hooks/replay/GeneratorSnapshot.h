#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace at::remat {

// The state of a generator at some time. CUDA's is two numbers.
struct GeneratorSnapshot {
  at::Generator generator; // on the CPU, a copy; on CUDA, the one it was
  uint64_t seed = 0;
  uint64_t offset = 0;

  bool defined() const {
    return generator.defined();
  }
};

// Of the generator that an op would draw from: `given`, or the default one of
// the device.
GeneratorSnapshot snapshot_generator(
    const std::optional<at::Generator>& given,
    c10::Device device);

// A generator of its own in that state.
at::Generator make_generator(const GeneratorSnapshot& snapshot);

} // namespace at::remat
