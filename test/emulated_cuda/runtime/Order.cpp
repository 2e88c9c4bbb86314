#include "Order.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>

namespace emulated_cuda {

void Clock::advance(int stream) {
  if (static_cast<size_t>(stream) >= ticks_.size()) {
    ticks_.resize(stream + 1);
  }
  ++ticks_[stream];
}

void Clock::learn(const Clock& other) {
  if (ticks_.size() < other.ticks_.size()) {
    ticks_.resize(other.ticks_.size());
  }
  for (size_t i = 0; i < other.ticks_.size(); ++i) {
    ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }
}

bool Clock::knows(const Clock& other) const {
  for (size_t i = 0; i < other.ticks_.size(); ++i) {
    if ((*this)[static_cast<int>(i)] < other.ticks_[i]) {
      return false;
    }
  }
  return true;
}

const std::string* AccessHistory::intern(const std::string& name) {
  // Kept for good: there are as many as ops.
  static std::unordered_set<std::string> names;
  return &*names.insert(name).first;
}

std::string AccessHistory::record(
    uintptr_t begin,
    uintptr_t end,
    bool is_write,
    int stream,
    const Clock& clock,
    const std::string& name) {
  std::string problem;
  const Access now{stream, clock[stream], intern(name)};
  const auto complain =
      [&](const char* does, const Access& other, const char* did) {
        std::ostringstream text;
        text << *now.name << " on stream " << now.stream << " " << does
             << " bytes that " << *other.name << " on stream " << other.stream
             << " " << did << ", without waiting for it";
        problem = text.str();
      };
  const auto is_after = [&](const Access& other) {
    return other.stream == stream || clock[other.stream] >= other.tick;
  };
  uintptr_t covered = begin;
  std::vector<std::pair<uintptr_t, uintptr_t>> gaps;
  last_.for_each(begin, end, [&](uintptr_t from, uintptr_t to, Last& last) {
    if (covered < from) {
      gaps.emplace_back(covered, from);
    }
    covered = to;
    if (last.write.name != nullptr && !is_after(last.write)) {
      complain(is_write ? "overwrites" : "reads", last.write, "wrote");
      return false;
    }
    if (is_write) {
      for (const Access& read : last.reads) {
        if (!is_after(read)) {
          complain("overwrites", read, "reads");
          return false;
        }
      }
      return true;
    }
    const auto own = std::find_if(
        last.reads.begin(), last.reads.end(), [&](const Access& read) {
          return read.stream == stream;
        });
    if (own == last.reads.end()) {
      last.reads.push_back(now);
    } else {
      *own = now;
    }
    return true;
  });
  if (!problem.empty()) {
    return problem;
  }
  if (is_write) {
    last_.assign(begin, end, Last{now, {}});
    return problem;
  }
  if (covered < end) {
    gaps.emplace_back(covered, end);
  }
  for (const auto& [from, to] : gaps) {
    last_.assign(from, to, Last{{-1, 0, nullptr}, {now}});
  }
  return problem;
}

} // namespace emulated_cuda
