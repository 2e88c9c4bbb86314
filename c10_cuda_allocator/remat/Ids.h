#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace c10::remat {

using Bytes = uint64_t;
// Logical time: nanoseconds of recompute cost of the ops captured so far. It
// advances only with captured ops, so that a trace gives the same decisions
// whenever it is run.
using Ticks = int64_t;
using CostNs = int64_t;

// Names a slot of the graph. A slot is reused after what it named is
// forgotten; whoever keeps an id keeps its subject alive (see OpGraph).
template <class Tag>
struct Id {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t index = kNone;

  explicit operator bool() const {
    return index != kNone;
  }
  friend bool operator==(Id a, Id b) {
    return a.index == b.index;
  }
  friend bool operator!=(Id a, Id b) {
    return a.index != b.index;
  }
  friend bool operator<(Id a, Id b) {
    return a.index < b.index;
  }
};

// One version of a storage: its bytes between two writes.
using VersionId = Id<struct VersionTag>;
using OpId = Id<struct OpTag>;

} // namespace c10::remat

namespace std {
template <class Tag>
struct hash<c10::remat::Id<Tag>> {
  size_t operator()(c10::remat::Id<Tag> id) const noexcept {
    return id.index;
  }
};
} // namespace std
