#pragma once

#include "../policy/PlanExchange.h"

#include <functional>
#include <optional>

namespace c10::remat {

// The best way to run an iteration: DTR's, or that of the usual number of
// Planner's candidates. Deterministic. Nothing is found if simulating what was
// logged does not give what the engine saw. None if `may_go_on` has returned
// false.
REMAT_API std::optional<PlanAnswer> search_plan(
    const PlanRequest& request,
    const std::function<bool()>* may_go_on = nullptr);

} // namespace c10::remat
