#pragma once

#include "../Export.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace c10::remat {

// A network of nodes and links with capacities, and the cut of least capacity
// between its first node, the source, and its second, the sink. By Dinic's
// algorithm, without recursion.
class REMAT_API MinCut {
 public:
  static constexpr uint32_t kSource = 0;
  static constexpr uint32_t kSink = 1;
  static constexpr int64_t kUncut = std::numeric_limits<int64_t>::max() / 4;

  explicit MinCut(uint32_t nodes) : first_(nodes, kNone) {}

  // Returns a number to change its capacity by. Not below 0.
  uint32_t add_link(uint32_t from, uint32_t to, int64_t capacity);
  void set_capacity(uint32_t link, int64_t capacity) {
    links_[link].capacity = capacity;
  }

  // False: `may_go_on`, if any, has said no.
  bool solve(const std::function<bool()>* may_go_on = nullptr);
  // After that: on the side of the source, which is as small as can be.
  bool is_at_source(uint32_t node) const {
    return level_[node] != kNone;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Link { // the one back is its number ^ 1
    uint32_t to;
    uint32_t next; // from the same node
    int64_t capacity;
    int64_t left = 0;
  };

  bool find_levels();
  void fill_paths();

  std::vector<uint32_t> first_; // link, by node
  std::vector<Link> links_;
  std::vector<uint32_t> level_; // by node
  std::vector<uint32_t> current_; // link, by node
  std::vector<uint32_t> queue_;
  std::vector<uint32_t> path_; // links
};

} // namespace c10::remat
