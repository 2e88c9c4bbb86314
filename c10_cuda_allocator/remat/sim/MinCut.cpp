#include "MinCut.h"

#include <algorithm>

namespace c10::remat {

uint32_t MinCut::add_link(uint32_t from, uint32_t to, int64_t capacity) {
  const auto number = static_cast<uint32_t>(links_.size());
  links_.push_back({to, first_[from], capacity});
  first_[from] = number;
  links_.push_back({from, first_[to], 0});
  first_[to] = number + 1;
  return number;
}

bool MinCut::solve(const std::function<bool()>* may_go_on) {
  for (Link& link : links_) {
    link.left = link.capacity;
  }
  while (find_levels()) {
    if (may_go_on != nullptr && !(*may_go_on)()) {
      return false;
    }
    fill_paths();
  }
  return true;
}

bool MinCut::find_levels() {
  level_.assign(first_.size(), kNone);
  level_[kSource] = 0;
  queue_.assign(1, kSource);
  for (size_t i = 0; i < queue_.size(); ++i) {
    const uint32_t node = queue_[i];
    for (uint32_t l = first_[node]; l != kNone; l = links_[l].next) {
      const Link& link = links_[l];
      if (link.left > 0 && level_[link.to] == kNone) {
        level_[link.to] = level_[node] + 1;
        queue_.push_back(link.to);
      }
    }
  }
  return level_[kSink] != kNone;
}

void MinCut::fill_paths() {
  current_ = first_;
  path_.clear();
  uint32_t node = kSource;
  while (true) {
    if (node == kSink) {
      int64_t flow = kUncut;
      for (const uint32_t l : path_) {
        flow = std::min(flow, links_[l].left);
      }
      size_t keep = path_.size();
      for (size_t i = path_.size(); i-- > 0;) {
        links_[path_[i]].left -= flow;
        links_[path_[i] ^ 1].left += flow;
        if (links_[path_[i]].left == 0) {
          keep = i;
        }
      }
      // On from the first link that is full.
      node = links_[path_[keep] ^ 1].to;
      path_.resize(keep);
      continue;
    }
    uint32_t& l = current_[node];
    while (l != kNone &&
           (links_[l].left == 0 || level_[links_[l].to] != level_[node] + 1)) {
      l = links_[l].next;
    }
    if (l != kNone) {
      path_.push_back(l);
      node = links_[l].to;
      continue;
    }
    if (path_.empty()) {
      return;
    }
    node = links_[path_.back() ^ 1].to;
    path_.pop_back();
    current_[node] = links_[current_[node]].next;
  }
}

} // namespace c10::remat
