#pragma once

#include "IntervalMap.h"

#include <string>
#include <vector>

namespace emulated_cuda {

// How far each stream had come, as somebody knows it (a vector clock: Mattern,
// "Virtual Time and Global States of Distributed Systems", 1989). By the
// stream's number.
class Clock {
 public:
  uint64_t operator[](int stream) const {
    return static_cast<size_t>(stream) < ticks_.size() ? ticks_[stream] : 0;
  }
  void advance(int stream);
  // Knows from now on what `other` knows.
  void learn(const Clock& other);
  bool knows(const Clock& other) const;

 private:
  std::vector<uint64_t> ticks_;
};

// Who used which bytes last, to find accesses that nothing orders.
class AccessHistory {
 public:
  // The access by an op `name` on `stream`, which knows `clock`, itself
  // included. Returns what is wrong with it; empty: nothing is.
  std::string record(
      uintptr_t begin,
      uintptr_t end,
      bool is_write,
      int stream,
      const Clock& clock,
      const std::string& name);
  void forget(uintptr_t begin, uintptr_t end) {
    last_.erase(begin, end);
  }

 private:
  struct Access {
    int stream;
    uint64_t tick;
    const std::string* name; // interned
  };
  struct Last {
    Access write;
    std::vector<Access> reads; // since then, one a stream
  };

  const std::string* intern(const std::string& name);

  IntervalMap<Last> last_;
};

} // namespace emulated_cuda
