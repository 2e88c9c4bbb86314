#pragma once

#include <c10/remat/Engine.h>
#include <c10/remat/Errors.h>

#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace at::remat {

using c10::remat::Engine;

// What holds the memory of `device` and what to do. `nbytes`: the allocation
// that failed; 0: a replay.
std::string explain_memory(
    c10::Device device,
    c10::remat::Bytes nbytes,
    const c10::remat::MemoryBreakdown& memory);

// Throws c10::OutOfMemoryError with that.
[[noreturn]] void throw_out_of_memory(
    Engine& engine,
    c10::Device device,
    size_t nbytes);

// The CPU allocator is about to pass the budget: evicts, or throws
// c10::OutOfMemoryError.
void relieve_cpu_pressure(size_t nbytes, size_t shortage);

// Runs `function`, and reports a replay whose inputs do not fit in the budget
// as out of memory, too.
template <class Function>
auto with_memory_errors(
    Engine& engine,
    c10::Device device,
    Function&& function) {
  try {
    return function();
  } catch (const c10::remat::WorkingSetTooLarge&) {
    throw_out_of_memory(engine, device, 0);
  }
}

// Other threads' ops unpin when they end: waits a little for those that are
// under way on `engine`. False if there are none, or after so many `waits`.
bool wait_for_other_ops(const Engine& engine, int& waits);

// Counts its lifetime as time spent relieving pressure.
class ReliefTimer {
 public:
  explicit ReliefTimer(Engine& engine);
  ~ReliefTimer();
  ReliefTimer(const ReliefTimer&) = delete;
  ReliefTimer& operator=(const ReliefTimer&) = delete;

 private:
  Engine& engine_;
  std::chrono::steady_clock::time_point start_;
};

// Time that this thread has spent relieving pressure, so that the cost of an
// op can be told without it.
int64_t relief_ns_of_thread();

} // namespace at::remat
