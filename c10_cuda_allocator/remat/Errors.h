#pragma once

#include "Export.h"

#include <stdexcept>

namespace c10::remat {

// The caller's mistake; the text says what was asked and what is accepted.
struct REMAT_API UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// What one replay has to hold at once does not fit in the budget: it keeps
// evicting its own inputs.
struct REMAT_API WorkingSetTooLarge : std::runtime_error {
  WorkingSetTooLarge()
      : std::runtime_error(
            "remat: the inputs of one replay do not fit in the budget") {}
};

} // namespace c10::remat
