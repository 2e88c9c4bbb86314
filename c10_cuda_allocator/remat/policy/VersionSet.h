#pragma once

#include "../graph/OpRecord.h"

#include <algorithm>
#include <vector>

namespace c10::remat {

// Versions to look at later, each at most once, so that what is not looked at
// for a long time holds no more than there are slots.
class VersionSet {
 public:
  void add(VersionId id) {
    if (id.index >= is_listed_.size()) {
      is_listed_.resize(std::max<size_t>(id.index + 1, 2 * is_listed_.size()));
    }
    if (!is_listed_[id.index]) {
      is_listed_[id.index] = true;
      versions_.push_back(id);
    }
  }
  // Skips ids that are none.
  void add(const VersionIds& ids) {
    for (const VersionId id : ids) {
      if (id) {
        add(id);
      }
    }
  }

  bool empty() const {
    return versions_.empty();
  }

  // Appends all to `to`, in the order they were added, and is empty then.
  void drain(std::vector<VersionId>& to) {
    for (const VersionId id : versions_) {
      is_listed_[id.index] = false;
    }
    to.insert(to.end(), versions_.begin(), versions_.end());
    versions_.clear();
  }

 private:
  std::vector<VersionId> versions_;
  std::vector<bool> is_listed_; // by VersionId::index
};

} // namespace c10::remat
