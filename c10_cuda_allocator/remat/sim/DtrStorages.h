#pragma once

#include "Workload.h"

#include <algorithm>
#include <list>
#include <vector>

namespace c10::remat {

struct DtrStorage {
  Workload::Tensor root = UINT32_MAX;
  std::vector<Workload::Tensor> tensors;
  std::vector<Workload::Storage> parents;
  std::vector<Workload::Storage> children;
  bool resident = false;
  bool constant = false;
  bool in_pool = false;
  uint32_t pins = 0;
  uint32_t references = 0;
  Ticks last_access = 0;
  CostNs cost = 0;
  CostNs neighbors = -1; // cost of the evicted ones; -1: not known
  uint32_t set = UINT32_MAX; // while it is evicted
  std::list<Workload::Storage>::iterator place; // in the pool
};

// The storages of DTR's simulator, how they depend on each other, and the
// scores of its heuristics; see Note [What DTR's simulator does].
class DtrStorages {
 public:
  using Storage = Workload::Storage;
  enum class Score { Lru, Largest, Msps, Dtr, DtrEq };

  DtrStorages(const Workload& workload, Score score)
      : workload_(workload),
        score_(score),
        storages_(workload.size_of.size()),
        marks_(workload.size_of.size()) {}

  DtrStorage& operator[](Storage own) {
    return storages_[own];
  }

  // `own` is read by an op that makes something in `child`.
  void link(Storage own, Storage child) {
    auto& parents = storages_[child].parents;
    if (own != child &&
        std::find(parents.begin(), parents.end(), own) == parents.end()) {
      parents.push_back(own);
      storages_[own].children.push_back(child);
    }
  }

  void evicted(Storage own) {
    forget_neighborhoods(own);
    DtrStorage& storage = storages_[own];
    storage.resident = false;
    storage.set = static_cast<uint32_t>(set_parents_.size());
    set_parents_.push_back(storage.set);
    set_costs_.push_back(storage.cost);
    for (const auto* neighbors : {&storage.parents, &storage.children}) {
      for (const Storage neighbor : *neighbors) {
        const DtrStorage& other = storages_[neighbor];
        if (!other.resident && other.set != kNone) {
          join_sets(other.set, storage.set);
        }
      }
    }
  }

  void came_back(Storage own) {
    forget_neighborhoods(own);
    DtrStorage& storage = storages_[own];
    storage.resident = true;
    if (storage.set != kNone) {
      set_costs_[find_set(storage.set)] -= storage.cost;
      storage.set = kNone;
    }
  }

  // Lowest first; `now` is later than all accesses.
  double score_of(Storage own, Ticks now) {
    DtrStorage& storage = storages_[own];
    const auto size = static_cast<double>(workload_.size_of[own]);
    const auto staleness = static_cast<double>(now - storage.last_access);
    switch (score_) {
    case Score::Lru:
      return 1 / staleness;
    case Score::Largest:
      return 1 / size;
    case Score::Msps:
      return static_cast<double>(
                 storage.cost + evicted_cost(own, /*and_children=*/false)) /
          size;
    case Score::Dtr:
      if (storage.neighbors < 0) {
        storage.neighbors = evicted_cost(own, /*and_children=*/true);
      }
      return static_cast<double>(storage.cost + storage.neighbors) /
          (size * staleness);
    case Score::DtrEq:
      break;
    }
    return static_cast<double>(storage.cost + sets_cost(own)) /
        (size * staleness);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Calls `visit(Storage)` for what `own` reaches through evicted storages,
  // on one side; goes on behind what is evicted.
  template <class Visit>
  void walk(Storage own, bool to_children, Visit visit) {
    reached_.assign(1, own);
    for (size_t i = 0; i < reached_.size(); ++i) {
      const DtrStorage& storage = storages_[reached_[i]];
      for (const Storage next :
           to_children ? storage.children : storage.parents) {
        if (marks_[next] != mark_) {
          marks_[next] = mark_;
          visit(next);
          if (!storages_[next].resident) {
            reached_.push_back(next);
          }
        }
      }
    }
  }

  CostNs evicted_cost(Storage own, bool and_children) {
    CostNs cost = 0;
    const auto add = [&](Storage storage) {
      cost += storages_[storage].resident ? 0 : storages_[storage].cost;
    };
    marks_[own] = ++mark_;
    walk(own, /*to_children=*/false, add);
    if (and_children) {
      marks_[own] = ++mark_;
      walk(own, /*to_children=*/true, add);
    }
    return cost;
  }

  void forget_neighborhoods(Storage own) {
    if (score_ != Score::Dtr) {
      return;
    }
    storages_[own].neighbors = -1;
    for (const bool to_children : {false, true}) {
      marks_[own] = ++mark_;
      walk(own, to_children, [&](Storage storage) {
        storages_[storage].neighbors = -1;
      });
    }
  }

  CostNs sets_cost(Storage own) {
    CostNs cost = 0;
    sets_seen_.clear();
    const DtrStorage& storage = storages_[own];
    for (const auto* neighbors : {&storage.parents, &storage.children}) {
      for (const Storage neighbor : *neighbors) {
        const DtrStorage& other = storages_[neighbor];
        if (other.resident || other.set == kNone) {
          continue;
        }
        const uint32_t set = find_set(other.set);
        if (std::find(sets_seen_.begin(), sets_seen_.end(), set) ==
            sets_seen_.end()) {
          sets_seen_.push_back(set);
          cost += set_costs_[set];
        }
      }
    }
    return cost;
  }

  uint32_t find_set(uint32_t set) {
    while (set_parents_[set] != set) {
      set_parents_[set] = set_parents_[set_parents_[set]];
      set = set_parents_[set];
    }
    return set;
  }
  void join_sets(uint32_t a, uint32_t b) {
    a = find_set(a);
    b = find_set(b);
    if (a != b) {
      set_parents_[a] = b;
      set_costs_[b] += set_costs_[a];
    }
  }

  const Workload& workload_;
  const Score score_;
  std::vector<DtrStorage> storages_;
  std::vector<uint32_t> set_parents_;
  std::vector<CostNs> set_costs_;
  std::vector<uint32_t> sets_seen_; // scratch
  std::vector<uint64_t> marks_; // by storage
  uint64_t mark_ = 0;
  std::vector<Storage> reached_; // scratch
};

} // namespace c10::remat
