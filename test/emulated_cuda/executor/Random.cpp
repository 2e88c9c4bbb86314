#include "Random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace emulated_cuda {

namespace {

std::recursive_mutex default_generator_mutex;

// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast Splittable
// Pseudorandom Number Generators", 2014).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

} // namespace

at::PhiloxCudaState take_random_state(
    const std::optional<at::Generator>& given,
    c10::DeviceIndex device) {
  auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      given, at::cuda::detail::getDefaultCUDAGenerator(device));
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  return generator->philox_cuda_state(kOffsetsPerOp);
}

SeedAndOffset read(const at::PhiloxCudaState& state) {
  if (!state.captured_) {
    return {state.seed_.val, state.offset_.val};
  }
  return {
      static_cast<uint64_t>(*state.seed_.ptr),
      static_cast<uint64_t>(*state.offset_.ptr) + state.offset_intragraph_};
}

at::Generator cpu_generator(SeedAndOffset state) {
  return at::detail::createCPUGenerator(
      mixed(state.seed + 0x9E3779B97F4A7C15ULL * (state.offset + 1)));
}

DefaultGeneratorSwap::DefaultGeneratorSwap(SeedAndOffset state) {
  default_generator_mutex.lock();
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  before_ = generator.getIntrusivePtr()->clone();
  generator.unsafeGetGeneratorImpl()->set_state(
      *cpu_generator(state).unsafeGetGeneratorImpl()->get_state());
}

DefaultGeneratorSwap::~DefaultGeneratorSwap() {
  at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl()->set_state(
      *before_->get_state());
  default_generator_mutex.unlock();
}

} // namespace emulated_cuda
