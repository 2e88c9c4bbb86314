#pragma once

#include "Ids.h"

#include <cstdint>
#include <string>

namespace c10::remat {

// Takes one line of a trace apart, from left to right. Strict: no spaces, keys
// in their one order, numbers without sign, fraction or leading zeros. Throws
// TraceError naming the place.
class TraceLine {
 public:
  TraceLine(const std::string& source, uint64_t number, const std::string& text)
      : source_(source), number_(number), text_(text) {}

  // The next characters are these.
  void expect(const char* literal);
  // True, and goes on behind them, if they are.
  bool accept(const char* literal);
  void expect_end();

  uint64_t number();
  // A string of printable ASCII with \" and \\ escaped.
  std::string string();

  [[noreturn]] void fail(const std::string& expected) const;

 private:
  const std::string& source_;
  uint64_t number_;
  const std::string& text_;
  size_t position_ = 0;
};

} // namespace c10::remat
