#include "Dependents.h"

#include <algorithm>
#include <unordered_set>

namespace c10::remat {

namespace {

// Op records seen before; few, as a rule.
class SeenOps {
 public:
  // False if `id` is there already.
  bool insert(OpId id) {
    if (!many_.empty()) {
      return many_.insert(id).second;
    }
    if (std::find(few_.begin(), few_.end(), id) != few_.end()) {
      return false;
    }
    few_.push_back(id);
    if (few_.size() == kFew) {
      many_.insert(few_.begin(), few_.end());
    }
    return true;
  }

 private:
  static constexpr uint32_t kFew = 16;
  InlineVector<OpId, kFew> few_;
  std::unordered_set<OpId> many_;
};

} // namespace

Dependents find_dependents(const OpGraph& graph, VersionId id) {
  Dependents found;
  SeenOps seen;
  VersionIds pending{id};
  while (!pending.empty()) {
    const VersionId next = pending.back();
    pending.pop_back();
    for (const OpId reader : graph[next].readers) {
      if (!seen.insert(reader)) {
        continue;
      }
      for (const VersionId output : graph[reader].outputs) {
        if (!output) {
          continue;
        }
        const StorageVersion& version = graph[output];
        if (version.resident && !version.kept) {
          found.resident.push_back(output);
        } else if (version.owned) {
          found.evicted.push_back(output);
        } else {
          pending.push_back(output);
        }
        if (version.writers != 0) {
          pending.push_back(output); // its bytes are about to go, too
        }
      }
    }
  }
  return found;
}

} // namespace c10::remat
