#pragma once

#include <cstddef>
#include <cstdint>

namespace at::remat {

// The CPU allocator is about to pass the budget: evicts, or throws
// c10::OutOfMemoryError with what holds the memory and what to do.
void relieve_cpu_pressure(size_t nbytes, size_t shortage);

// Time that this thread has spent relieving pressure, so that the cost of an
// op can be told without it.
int64_t relief_ns_of_thread();

} // namespace at::remat
