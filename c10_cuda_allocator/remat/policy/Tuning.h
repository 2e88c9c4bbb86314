#pragma once

#include "../Ids.h"

#include <cstdint>
#include <vector>

namespace c10::remat {

// What a plan does with values until the moment of most memory.
struct Foreseen {
  static constexpr uint32_t kStays = UINT32_MAX; // never evicted
  static constexpr uint32_t kEither = 0; // dead by then, or evicted later

  // By value: the place of the op before which it is evicted.
  std::vector<uint32_t> evicted_at;
  uint32_t until = 0; // place of the op that needs the most memory

  uint32_t fate(uint32_t value) const {
    return value < evicted_at.size() ? evicted_at[value] : kEither;
  }
};

// How NextUsePolicy weighs what it knows of a value.
struct Tuning {
  double cost = 1;
  double size = 1;
  double distance = 1;
  bool keeps = true; // intermediates
  // By value: what is added to the logarithm of its score. Zero behind the
  // end.
  std::vector<float> bias;
  Foreseen foreseen; // empty: not known
};

} // namespace c10::remat
