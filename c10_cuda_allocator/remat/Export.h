#pragma once

// Symbols that other libraries use, and the check for faults of our own. The
// core knows nothing of c10, so both are spelled out here.
#define REMAT_API __attribute__((__visibility__("default")))

namespace c10::remat {

// Throws std::logic_error naming the broken invariant.
[[noreturn]] REMAT_API void assertion_failed(
    const char* expression,
    const char* file,
    int line);

} // namespace c10::remat

#define REMAT_ASSERT(expression)                                       \
  do {                                                                 \
    if (__builtin_expect(!(expression), 0)) {                          \
      ::c10::remat::assertion_failed(#expression, __FILE__, __LINE__); \
    }                                                                  \
  } while (false)
