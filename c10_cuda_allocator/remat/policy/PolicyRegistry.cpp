#include "PolicyRegistry.h"

#include "../Errors.h"
#include "CentralityPolicy.h"
#include "CoopPolicy.h"
#include "DtePolicy.h"
#include "DtrEqPolicy.h"
#include "DtrPolicy.h"
#include "LargestPolicy.h"
#include "LruPolicy.h"
#include "MspsPolicy.h"
#include "PlannedPolicy.h"

namespace c10::remat {

namespace {

struct Entry {
  const char* name;
  std::unique_ptr<EvictionPolicy> (*make)();
};

template <class Policy>
std::unique_ptr<EvictionPolicy> make() {
  return std::make_unique<Policy>();
}

constexpr Entry kPolicies[] = {
    {"centrality", &make<CentralityPolicy>},
    {"coop", &make<CoopPolicy>},
    {"dte", &make<DtePolicy>},
    {"dtr", &make<DtrPolicy>},
    {"dtr_eq", &make<DtrEqPolicy>},
    {"largest", &make<LargestPolicy>},
    {"lru", &make<LruPolicy>},
    {"msps", &make<MspsPolicy>},
    {"planned", &make<PlannedPolicy>},
};

} // namespace

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Entry& entry : kPolicies) {
      all.emplace_back(entry.name);
    }
    return all;
  }();
  return names;
}

std::unique_ptr<EvictionPolicy> make_policy(const std::string& name) {
  std::string known;
  for (const Entry& entry : kPolicies) {
    if (name == entry.name) {
      return entry.make();
    }
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  throw UsageError(
      "unknown eviction policy \"" + name + "\"; the policies are " + known);
}

const std::string& default_policy_name() {
  static const std::string name = "planned";
  return name;
}

} // namespace c10::remat
