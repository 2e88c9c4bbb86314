#pragma once

#include "../Ids.h"

namespace c10::remat {

// Time since the last access, and one tick more: what was read within the
// current op is as fresh as can be, not infinitely so.
inline double staleness(Ticks last_access, Ticks now) {
  return static_cast<double>(now - last_access + 1);
}

} // namespace c10::remat
