#pragma once

#include "../policy/NextUsePolicy.h"
#include "Simulation.h"

#include <memory>

namespace c10::remat {

// What an engine that never evicts sees of the workload.
REMAT_API std::shared_ptr<const Future> future_of(const Workload& workload);

} // namespace c10::remat
