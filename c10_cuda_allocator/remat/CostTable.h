#pragma once

#include "Ids.h"

#include <algorithm>
#include <unordered_map>

namespace c10::remat {

// Recompute cost per op signature: the least of the first few measurements,
// which is the one that other load on the machine disturbed least. After those
// it stays, so that like ops have like costs and a policy can compare them.
class CostTable {
 public:
  static constexpr uint32_t kSamples = 8;

  // `measured` is 0 where it was not, `estimate` where there is none. An
  // estimate counts until the first measurement.
  CostNs update(uint64_t signature, CostNs measured, CostNs estimate = 0) {
    Entry& entry = entries_[signature];
    if (measured <= 0) {
      if (entry.samples == 0 && estimate > 0) {
        entry.cost = estimate;
      }
      return std::max<CostNs>(entry.cost, 1);
    }
    if (entry.samples == 0) {
      entry.cost = measured;
    } else if (entry.samples < kSamples) {
      entry.cost = std::min(entry.cost, measured);
    }
    entry.samples += entry.samples < kSamples;
    return entry.cost;
  }

 private:
  struct Entry {
    CostNs cost = 0;
    uint32_t samples = 0;
  };
  std::unordered_map<uint64_t, Entry> entries_;
};

} // namespace c10::remat
