#pragma once

#include "../Ids.h"

#include <algorithm>

namespace c10::remat {

// Time since the last access, at least one tick: what was read within the
// current op is as fresh as can be, not infinitely so.
inline double staleness(Ticks last_access, Ticks now) {
  return static_cast<double>(std::max<Ticks>(now - last_access, 1));
}

} // namespace c10::remat
