#pragma once

#include "OpTraits.h"

#include "../replay/OpCallRecord.h"

#include <c10/remat/Ids.h>

namespace at::remat {

// About how long `record`, which has just run, takes on a GPU: what an op is
// taken to cost until events have measured it. The longer of its bytes and its
// arithmetic at the rates of no GPU in particular; it is there to tell a large
// matrix product from a sum.
//
// `results`: as the op returned them.
c10::remat::CostNs estimate_cost(
    const OpTraits& traits,
    const OpCallRecord& record,
    c10::ArrayRef<c10::IValue> results);

} // namespace at::remat
