#pragma once

#include "Export.h"

#include <mutex>

namespace c10::remat {

// Runs `wait(argument)`, which blocks until another thread is done. The Python
// binding installs one that gives up the interpreter lock meanwhile, as the
// other thread may be replaying an op that is written in Python.
using BlockingSection = void (*)(void (*wait)(void*), void* argument);

REMAT_API void set_blocking_section(BlockingSection section) noexcept;

void lock_in_blocking_section(std::unique_lock<std::recursive_mutex>& lock);

} // namespace c10::remat
