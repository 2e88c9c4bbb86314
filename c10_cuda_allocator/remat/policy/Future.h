#pragma once

#include "../Export.h"
#include "../Ids.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace c10::remat {

// What a stretch of a program that was seen once does: its recorded ops in
// order, and which later ones read each value. An op is named by its place,
// a value by the place at which it was made and its number among the outputs.
struct REMAT_API Future {
  static constexpr uint32_t kNever = UINT32_MAX;

  struct Op {
    CostNs cost = 0;
    // Of this op and all before it: names, operands and sizes. Where two
    // futures have the same they have done the same so far.
    uint64_t fingerprint = 0;
    Ticks start = 0; // the costs of all before it
    uint32_t first_value = 0;
    uint32_t value_count = 0;
  };
  struct Value {
    uint32_t maker = 0; // the place of the op
    Bytes size = 0;
    std::vector<uint32_t> uses; // places of the ops that read it, ascending
  };

  std::vector<Op> ops;
  std::vector<Value> values;

  // The first place from `place` on at which `value` is read.
  uint32_t next_use(uint32_t value, uint32_t place) const;
  Ticks time_at(uint32_t place) const {
    return place < ops.size() ? ops[place].start : length();
  }
  Ticks length() const {
    return ops.empty() ? 0 : ops.back().start + ops.back().cost;
  }
  Bytes bytes() const; // of memory, about
  // Of all of it.
  uint64_t fingerprint() const {
    return ops.empty() ? 0 : ops.back().fingerprint;
  }
};

} // namespace c10::remat
