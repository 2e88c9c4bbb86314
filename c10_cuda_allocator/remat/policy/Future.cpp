#include "Future.h"

#include <algorithm>

namespace c10::remat {

uint32_t Future::next_use(uint32_t value, uint32_t place) const {
  const auto& uses = values[value].uses;
  const auto next = std::lower_bound(uses.begin(), uses.end(), place);
  return next == uses.end() ? kNever : *next;
}

Bytes Future::bytes() const {
  Bytes total = ops.capacity() * sizeof(Op) + values.capacity() * sizeof(Value);
  for (const Value& value : values) {
    total += value.uses.capacity() * sizeof(uint32_t);
  }
  return total;
}

} // namespace c10::remat
