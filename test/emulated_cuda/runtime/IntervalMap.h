#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace emulated_cuda {

// Values of half-open ranges of addresses that do not overlap. A range is
// split where a part of it gets another value.
template <class Value>
class IntervalMap {
 public:
  void erase(uintptr_t begin, uintptr_t end) {
    split(begin);
    split(end);
    ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
  }

  void assign(uintptr_t begin, uintptr_t end, Value value) {
    erase(begin, end);
    ranges_.emplace(begin, Range{end, std::move(value)});
  }

  // Calls `function(begin, end, value)` for each range in [begin, end), cut to
  // it, until it returns false.
  template <class Function>
  void for_each(uintptr_t begin, uintptr_t end, Function&& function) {
    split(begin);
    split(end);
    for (auto it = ranges_.lower_bound(begin);
         it != ranges_.end() && it->first < end;
         ++it) {
      if (!function(it->first, it->second.end, it->second.value)) {
        return;
      }
    }
  }

  bool overlaps(uintptr_t begin, uintptr_t end) const {
    auto it = ranges_.lower_bound(begin);
    if (it != ranges_.end() && it->first < end) {
      return true;
    }
    return it != ranges_.begin() && std::prev(it)->second.end > begin;
  }

  size_t size() const {
    return ranges_.size();
  }

 private:
  struct Range {
    uintptr_t end;
    Value value;
  };

  void split(uintptr_t address) {
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) {
      return;
    }
    --it;
    if (it->first < address && address < it->second.end) {
      Range upper{it->second.end, it->second.value};
      it->second.end = address;
      ranges_.emplace(address, std::move(upper));
    }
  }

  std::map<uintptr_t, Range> ranges_;
};

} // namespace emulated_cuda
