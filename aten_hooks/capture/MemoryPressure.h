#pragma once

#include <c10/remat/Engine.h>
#include <c10/remat/Errors.h>

#include <cstddef>
#include <cstdint>

namespace at::remat {

using c10::remat::Engine;

// Throws c10::OutOfMemoryError with what holds the memory and what to do.
// `nbytes`: the allocation that failed; 0: a replay.
[[noreturn]] void throw_out_of_memory(Engine& engine, size_t nbytes);

// The CPU allocator is about to pass the budget: evicts, or throws
// c10::OutOfMemoryError.
void relieve_cpu_pressure(size_t nbytes, size_t shortage);

// Runs `function`, and reports a replay whose inputs do not fit in the budget
// as out of memory, too.
template <class Function>
auto with_memory_errors(Engine& engine, Function&& function) {
  try {
    return function();
  } catch (const c10::remat::WorkingSetTooLarge&) {
    throw_out_of_memory(engine, 0);
  }
}

// Time that this thread has spent relieving pressure, so that the cost of an
// op can be told without it.
int64_t relief_ns_of_thread();

} // namespace at::remat
