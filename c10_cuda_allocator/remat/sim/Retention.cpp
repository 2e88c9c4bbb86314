#include "Retention.h"

#include "MinCut.h"

#include <algorithm>
#include <cmath>

namespace c10::remat {

namespace {

// By so much the first op is cheaper for its place.
constexpr double kPlaceShare = 0.02;
// Prices are sought to within a factor of 2 ^ -this over their range.
constexpr int kHalvings = 24;
// Costs and prices are rounded to this part of a nanosecond.
constexpr double kUnits = 64;
constexpr size_t kMostOps = 1 << 16;

bool is_read_after(const Future::Value& value, uint32_t place) {
  return !value.uses.empty() && value.uses.back() > place;
}

// What the op at `place` reads is there in any case.
bool is_read_by(const Future::Value& value, uint32_t place) {
  return std::binary_search(value.uses.begin(), value.uses.end(), place);
}

class Network {
 public:
  Network(const Future& future, uint32_t peak)
      : future_(future),
        peak_(peak),
        ops_(peak + 1),
        values_(future.ops[peak].first_value + future.ops[peak].value_count),
        cut_(2 + ops_ + values_) {
    for (uint32_t op = 0; op < ops_; ++op) {
      const double place = static_cast<double>(op) / ops_;
      const double cost = static_cast<double>(future.ops[op].cost) *
          (1 - kPlaceShare * (1 - place));
      cut_.add_link(
          node_of_op(op),
          MinCut::kSink,
          static_cast<int64_t>(std::ceil(cost * kUnits)));
    }
    for (uint32_t i = 0; i < values_; ++i) {
      const Future::Value& value = future.values[i];
      sizes_.push_back(is_read_by(value, peak) ? 0 : value.size);
      keeping_.push_back(cut_.add_link(node_of(i), node_of_op(value.maker), 0));
      if (is_read_after(value, peak)) {
        cut_.add_link(MinCut::kSource, node_of(i), MinCut::kUncut);
      }
      for (const uint32_t use : value.uses) {
        if (use <= peak) {
          cut_.add_link(node_of_op(use), node_of(i), MinCut::kUncut);
        }
      }
    }
  }

  // Returns the bytes that are kept at a price per byte.
  Bytes solve(double price, const std::function<bool()>* may_go_on) {
    for (uint32_t i = 0; i < values_; ++i) {
      cut_.set_capacity(
          keeping_[i],
          static_cast<int64_t>(
              std::ceil(price * kUnits * static_cast<double>(sizes_[i]))));
    }
    was_interrupted_ = !cut_.solve(may_go_on);
    Bytes kept = 0;
    for (uint32_t i = 0; i < values_; ++i) {
      kept += is_kept(i) ? sizes_[i] : 0;
    }
    return kept;
  }
  // Of the values that are read later, but not by the op itself.
  Bytes needed() const {
    Bytes needed = 0;
    for (uint32_t i = 0; i < values_; ++i) {
      needed += is_read_after(future_.values[i], peak_) ? sizes_[i] : 0;
    }
    return needed;
  }
  bool was_interrupted() const {
    return was_interrupted_;
  }
  bool is_kept(uint32_t value) const {
    return cut_.is_at_source(node_of(value)) &&
        !cut_.is_at_source(node_of_op(future_.values[value].maker));
  }
  std::vector<Wish> wishes() const {
    std::vector<Wish> wishes(values_, Wish::None);
    for (uint32_t i = 0; i < values_; ++i) {
      wishes[i] = is_kept(i) || is_read_by(future_.values[i], peak_)
          ? Wish::Keep
          : cut_.is_at_source(node_of(i)) ? Wish::LetGo
                                          : Wish::None;
    }
    return wishes;
  }

 private:
  uint32_t node_of_op(uint32_t op) const {
    return 2 + op;
  }
  uint32_t node_of(uint32_t value) const {
    return 2 + ops_ + value;
  }

  const Future& future_;
  const uint32_t peak_;
  const uint32_t ops_;
  const uint32_t values_;
  MinCut cut_;
  std::vector<uint32_t> keeping_; // link, by value
  // By value, what letting go of it yields at the peak.
  std::vector<Bytes> sizes_;
  bool was_interrupted_ = false;
};

} // namespace

std::vector<Wish> wishes_at_peak(
    const Future& future,
    uint32_t place,
    Bytes peak,
    Bytes room,
    const std::function<bool()>* may_go_on) {
  if (future.ops.empty() || future.ops.size() > kMostOps || room >= peak) {
    return {};
  }
  Network network(
      future,
      std::min<uint32_t>(place, static_cast<uint32_t>(future.ops.size()) - 1));
  const Bytes needed = network.needed();
  if (needed <= peak - room) {
    return {};
  }
  const Bytes most = needed - (peak - room);
  // Costs per byte are within these by far.
  double low = 1e-9;
  double high = 1e3;
  std::vector<Wish> wishes;
  for (int i = 0; i < kHalvings; ++i) {
    const double price = std::sqrt(low * high);
    const Bytes kept = network.solve(price, may_go_on);
    if (network.was_interrupted()) {
      return {};
    }
    if (kept <= most) {
      high = price;
      wishes = network.wishes();
    } else {
      low = price;
    }
  }
  return wishes;
}

} // namespace c10::remat
