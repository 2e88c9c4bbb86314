#include "TraceLine.h"

#include "Trace.h"

#include <algorithm>
#include <cstring>

namespace c10::remat {

namespace {

constexpr size_t kShownOfLine = 24;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

} // namespace

void TraceLine::expect(const char* literal) {
  if (!accept(literal)) {
    fail(literal);
  }
}

bool TraceLine::accept(const char* literal) {
  const size_t length = std::strlen(literal);
  if (text_.compare(position_, length, literal) != 0) {
    return false;
  }
  position_ += length;
  return true;
}

void TraceLine::expect_end() {
  if (position_ != text_.size()) {
    fail("the end of the line");
  }
}

uint64_t TraceLine::number() {
  size_t end = position_;
  uint64_t value = 0;
  while (end < text_.size() && is_digit(text_[end])) {
    const uint64_t digit = static_cast<uint64_t>(text_[end] - '0');
    if (value > (UINT64_MAX - digit) / 10) {
      fail("a number below 2^64");
    }
    value = value * 10 + digit;
    ++end;
  }
  const bool has_leading_zero = text_[position_] == '0' && end > position_ + 1;
  if (end == position_ || has_leading_zero) {
    fail("a number");
  }
  position_ = end;
  return value;
}

std::string TraceLine::string() {
  expect("\"");
  std::string value;
  for (;;) {
    if (accept("\"")) {
      return value;
    }
    if (accept("\\\"")) {
      value += '"';
    } else if (accept("\\\\")) {
      value += '\\';
    } else if (
        position_ < text_.size() && text_[position_] >= ' ' &&
        text_[position_] <= '~' && text_[position_] != '\\') {
      value += text_[position_++];
    } else {
      fail("printable ASCII or \" to end the string");
    }
  }
}

void TraceLine::fail(const std::string& expected) const {
  const std::string found = position_ >= text_.size()
      ? "the end of the line"
      : "\"" + text_.substr(position_, kShownOfLine) + "\"";
  throw TraceError(
      source_ + ":" + std::to_string(number_) + ":" +
      std::to_string(position_ + 1) + ": found " + found + ", expected " +
      expected);
}

} // namespace c10::remat
