#pragma once

#include <c10/remat/Export.h>

namespace at::remat {

// Note [The address of evicted bytes]
// Typed accessors (`data_ptr<T>()`, `accessor`) refuse a null address before
// they ask for the page fault that would bring the bytes back. An evicted
// storage therefore has an address, in a range that is reserved and can neither
// be read nor written. Code that reads through a pointer to const outside any
// op, which nothing tells us of, stops there, and `explain_faults` says why.
REMAT_API void* evicted_address();

// From now on a fault in that range is explained on standard error before the
// process ends, or before whoever handled such signals until now is asked.
void explain_faults();

} // namespace at::remat
