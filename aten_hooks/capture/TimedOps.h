#pragma once

#include <c10/remat/CostTable.h>

#include <cstdint>

namespace at::remat {

// Which signatures this thread has measured as often as the engine's CostTable
// wants to know: looking at the clock is a good part of what capture costs.
// Some are forgotten, and measured in vain.
class TimedOps {
 public:
  bool wants(uint64_t signature) {
    const Entry& entry = entry_of(signature);
    return entry.signature != signature ||
        entry.samples < c10::remat::CostTable::kSamples;
  }
  void count(uint64_t signature) {
    Entry& entry = entry_of(signature);
    if (entry.signature != signature) {
      entry = {signature, 0};
    }
    ++entry.samples;
  }

 private:
  struct Entry {
    uint64_t signature;
    uint32_t samples;
  };
  static constexpr int kBits = 9;

  Entry& entry_of(uint64_t signature) {
    return entries_[(signature * 0x9e3779b97f4a7c15) >> (64 - kBits)];
  }

  Entry entries_[1 << kBits];
};

} // namespace at::remat
