#pragma once

#include "EvictionPolicy.h"

#include <string>
#include <vector>

namespace c10::remat {

// The policies by name; the only list of them.
REMAT_API const std::vector<std::string>& policy_names();
// Throws UsageError naming the known ones.
REMAT_API std::unique_ptr<EvictionPolicy> make_policy(const std::string& name);
// The one that is used where none is named.
REMAT_API const std::string& default_policy_name();

} // namespace c10::remat
