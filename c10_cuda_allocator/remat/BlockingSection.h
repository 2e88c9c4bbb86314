#pragma once

#include "Export.h"

#include <mutex>

namespace c10::remat {

// Runs `wait(argument)`, which blocks until another thread is done. The Python
// binding installs one that gives up the interpreter lock meanwhile, as the
// other thread may be replaying an op that is written in Python.
using BlockingSection = void (*)(void (*wait)(void*), void* argument);

REMAT_API void set_blocking_section(BlockingSection section) noexcept;

REMAT_API void lock_in_blocking_section(
    std::unique_lock<std::recursive_mutex>& lock);

// Note [No interpreter lock under the engine's lock]
// A thread that waits for the engine's lock may hold the interpreter's:
// storages die wherever the program drops them. So nobody takes the
// interpreter's while it holds the engine's. The one that would is CUDA's
// allocator, which looks at the Python stack of frees when memory history asks
// for it; it leaves that be while bytes are given back under this guard.
class REMAT_API NoInterpreterGuard {
 public:
  NoInterpreterGuard() noexcept;
  ~NoInterpreterGuard();
  NoInterpreterGuard(const NoInterpreterGuard&) = delete;
  NoInterpreterGuard& operator=(const NoInterpreterGuard&) = delete;
};

REMAT_API bool may_take_interpreter_lock() noexcept;

} // namespace c10::remat
