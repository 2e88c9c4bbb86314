#pragma once

#include "EmulatedCuda.h"

namespace emulated_cuda {

// How to treat an access to bytes whose last user was not waited for.
enum class Races { Error, Warn, Ignore };

// Read from the environment once, when first asked for. A value that cannot be
// read ends the process with a message: there is nobody to raise an error yet.
// CUDA_VISIBLE_DEVICES counts too; all devices are alike.
//
//   EMULATED_CUDA_GPU         a100-40gb, h100-80gb, h200 or test (default)
//   EMULATED_CUDA_DEVICES     how many (default 1, at most 16)
//   EMULATED_CUDA_CAPACITY    bytes, or with a suffix KiB, MiB or GiB
//                             (default: the GPU's)
//   EMULATED_CUDA_TIMING      1: nothing is computed
//   EMULATED_CUDA_RACES       error (default), warn or ignore
//   EMULATED_CUDA_EVENT_LAG   how many queries an event that nobody waited for
//                             answers with "not ready" (default 1)
//   EMULATED_CUDA_LAUNCH_NS   what a launch costs the host, in timing mode
//                             (default 5000)
struct Settings {
  EmulatedGpu gpu;
  int devices;
  size_t capacity; // of each device, for allocations
  bool timing;
  Races races;
  int event_lag;
  double launch_ns;

  // The context takes some: no program can have all of it.
  size_t total_memory() const {
    return capacity + (size_t{2} << 20);
  }
};

const Settings& settings();

} // namespace emulated_cuda
