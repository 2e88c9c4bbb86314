#pragma once

#include "Nccl.h"

#include <cstddef>

namespace emulated_cuda {

// 0 for a type that NCCL does not have.
size_t size_of(ncclDataType_t type);

// `sum` becomes itself and `value`, element by element, rounded to the type as
// each step of a ring does. Averages are sums until `divide`.
void accumulate(
    void* sum,
    const void* value,
    size_t count,
    ncclDataType_t type,
    ncclRedOp_t op);
void divide(void* sum, size_t count, ncclDataType_t type, int by);

} // namespace emulated_cuda
