#include "Simulation.h"

#include "../Errors.h"

#include <algorithm>
#include <list>
#include <unordered_map>

namespace c10::remat {

// Note [What DTR's simulator does]
// To read the authors' logs as they do, and to have their figures to compare
// with, this follows their runtime, as far as their paper (Kirisame et al.,
// ICLR 2021, appendix C) and the published results tell. Where it differs from
// an Engine:
//
// - Views are ops. Evicting a storage undefines its views, each of which is run
//   again when it is read.
// - The victim is found by looking at every unpinned storage, in the order in
//   which their last pins went; of equal scores the last one wins.
// - A storage is evicted as soon as the program holds no reference to it. What
//   comes from outside never is.
// - Replay goes depth first, input by input. Inputs that are there are pinned
//   before those that are not are replayed, the others as they come.
// - An op that runs again needs memory for all its results, also for those that
//   are there already.
// - A result of a replay has the access time that it had before.
// - A storage costs what all its tensors' ops do, each op once.
// - The cost of a neighborhood is remembered until some storage in it is
//   evicted or comes back. That an op which is about to run will be in it, too,
//   is not noticed until then.

namespace {

using Kind = Workload::Step::Kind;
using Tensor = Workload::Tensor;
using Storage = Workload::Storage;
using Outcome = SimulationResult::Outcome;

constexpr uint32_t kNone = UINT32_MAX;

struct OutOfMemory {};
struct Thrashing {};

class DtrRuntime {
 public:
  enum class Score { Lru, Largest, Msps, Dtr, DtrEq };

  DtrRuntime(const Workload& workload, Score score, Bytes budget)
      : workload_(workload),
        score_(score),
        budget_(budget),
        tensors_(workload.storage_of.size()),
        storages_(workload.size_of.size()),
        marks_(workload.size_of.size()) {
    result_.base_cost = workload.cost();
  }

  SimulationResult run() {
    try {
      for (uint32_t i = 0; i < workload_.steps.size(); ++i) {
        step(i);
      }
      if (workload_.ends_resident) {
        hold_references();
      }
    } catch (const OutOfMemory&) {
      result_.outcome = Outcome::OutOfMemory;
    } catch (const Thrashing&) {
      result_.outcome = Outcome::Thrashed;
    }
    result_.elapsed = clock_;
    return result_;
  }

 private:
  struct TensorState {
    uint32_t op = kNone; // the step that makes it
    bool defined = false;
    uint32_t references = 0;
  };
  struct StorageState {
    Tensor root = kNone;
    std::vector<Tensor> tensors;
    std::vector<Storage> parents;
    std::vector<Storage> children;
    bool resident = false;
    bool constant = false;
    bool in_pool = false;
    uint32_t pins = 0;
    uint32_t references = 0;
    Ticks last_access = 0;
    CostNs cost = 0;
    CostNs neighbors = -1; // cost of the evicted ones; -1: not known
    uint32_t set = kNone; // while it is evicted
    std::list<Storage>::iterator place; // in the pool
  };
  struct Frame {
    uint32_t op;
    bool is_replay;
    std::vector<Tensor> missing;
    size_t next = 0;
  };

  const Workload::Step& op_of(uint32_t op) const {
    return workload_.steps[op];
  }
  Storage storage_of(Tensor tensor) const {
    return workload_.storage_of[tensor];
  }

  // --- the program ---

  void step(uint32_t index) {
    const Workload::Step& step = workload_.steps[index];
    const Storage storage = step.kind == Kind::Op ? 0 : storage_of(step.tensor);
    switch (step.kind) {
    case Kind::Constant:
      add_tensor(step.tensor, index);
      storages_[storage].constant = true;
      storages_[storage].resident = true;
      storages_[storage].last_access = clock_;
      tensors_[step.tensor].defined = true;
      make_room(workload_.size_of[storage]);
      use(workload_.size_of[storage]);
      break;
    case Kind::Op:
      for (const Tensor output : step.outputs) {
        add_tensor(output, index);
      }
      for (const Tensor output : step.outputs) {
        link(output, index);
      }
      perform(index, /*is_replay=*/false);
      for (const Workload::Overwrite& overwrite : step.overwrites) {
        release(step.inputs[overwrite.input]);
      }
      break;
    case Kind::Retain:
      ++tensors_[step.tensor].references;
      ++storages_[storage].references;
      break;
    case Kind::Release:
      release(step.tensor);
      break;
    case Kind::Access:
      acquire(step.tensor);
      storages_[storage].last_access = clock_;
      break;
    case Kind::LeafWrite:
    case Kind::ParameterWrite:
      break; // constants are never replayed
    }
  }

  void add_tensor(Tensor tensor, uint32_t op) {
    StorageState& storage = storages_[storage_of(tensor)];
    if (storage.root == kNone) {
      storage.root = tensor;
    }
    storage.tensors.push_back(tensor);
    ++storage.references;
    tensors_[tensor].op = op;
    tensors_[tensor].references = 1;
  }

  void link(Tensor tensor, uint32_t op) {
    const Storage own = storage_of(tensor);
    StorageState& storage = storages_[own];
    const auto first = std::find_if(
        storage.tensors.begin(), storage.tensors.end(), [&](Tensor t) {
          return tensors_[t].op == op;
        });
    storage.cost += *first == tensor ? op_of(op).cost : 0;
    for (const Tensor input : op_of(op).inputs) {
      const Storage parent = storage_of(input);
      auto& parents = storage.parents;
      if (parent != own &&
          std::find(parents.begin(), parents.end(), parent) == parents.end()) {
        parents.push_back(parent);
        storages_[parent].children.push_back(own);
      }
    }
  }

  void release(Tensor tensor) {
    --tensors_[tensor].references;
    const Storage own = storage_of(tensor);
    StorageState& storage = storages_[own];
    if (--storage.references == 0 && storage.resident && storage.pins == 0 &&
        !storage.constant) {
      evict(own);
    }
  }

  void hold_references() {
    for (Tensor tensor = 0; tensor < tensors_.size(); ++tensor) {
      if (tensors_[tensor].references > 0) {
        acquire(tensor);
        pin(storage_of(tensor));
      }
    }
  }

  // --- ops ---

  void acquire(Tensor tensor) {
    if (!tensors_[tensor].defined) {
      perform(tensors_[tensor].op, /*is_replay=*/true);
    }
  }

  void perform(uint32_t op, bool is_replay) {
    const uint64_t replays_before = result_.replays;
    std::vector<Frame> frames;
    frames.push_back(begin(op, is_replay));
    while (!frames.empty()) {
      Frame& frame = frames.back();
      if (frame.next == frame.missing.size()) {
        execute(frame.op, frame.is_replay);
        frames.pop_back();
        continue;
      }
      const Tensor missing = frame.missing[frame.next];
      if (tensors_[missing].defined) {
        pin(storage_of(missing));
        ++frame.next;
      } else {
        frames.push_back(begin(tensors_[missing].op, /*is_replay=*/true));
      }
    }
    result_.deepest_replay =
        std::max(result_.deepest_replay, result_.replays - replays_before);
  }

  Frame begin(uint32_t op, bool is_replay) {
    Frame frame{op, is_replay, {}, 0};
    for (const Tensor input : op_of(op).inputs) {
      storages_[storage_of(input)].last_access = clock_;
    }
    for (const Tensor input : op_of(op).inputs) {
      if (tensors_[input].defined) {
        pin(storage_of(input));
      } else {
        frame.missing.push_back(input);
      }
    }
    return frame;
  }

  // All inputs are defined and pinned.
  void execute(uint32_t op, bool is_replay) {
    const Workload::Step& step = op_of(op);
    Bytes needed = 0;
    std::vector<Storage> made;
    std::vector<Storage> doubled;
    for (const Tensor output : step.outputs) {
      const Storage storage = storage_of(output);
      if (storages_[storage].root == output) {
        needed += workload_.size_of[storage];
        (storages_[storage].resident ? doubled : made).push_back(storage);
      }
    }
    make_room(needed);
    for (const Storage storage : doubled) {
      if (!storages_[storage].resident) {
        made.push_back(storage); // evicted for itself
      }
    }
    use(needed);
    clock_ += step.cost;
    if (is_replay) {
      ++result_.replays;
      result_.recompute += step.cost;
      if (result_.recompute > result_.base_cost) {
        throw Thrashing();
      }
    }
    for (const Storage storage : made) {
      come_back(storage);
    }
    for (const Storage storage : doubled) {
      if (std::find(made.begin(), made.end(), storage) == made.end()) {
        usage_ -= workload_.size_of[storage];
      }
    }
    for (const Tensor output : step.outputs) {
      tensors_[output].defined = true;
      if (!is_replay) {
        storages_[storage_of(output)].last_access = clock_;
      }
    }
    for (const Tensor output : step.outputs) {
      join_pool(storage_of(output));
    }
    for (const Tensor input : step.inputs) {
      unpin(storage_of(input));
    }
  }

  // --- memory ---

  void use(Bytes size) {
    usage_ += size;
    result_.peak = std::max(result_.peak, usage_);
  }

  void make_room(Bytes needed) {
    while (usage_ + needed > budget_) {
      if (pool_.empty()) {
        throw OutOfMemory();
      }
      Storage victim = kNone;
      double lowest = 0;
      for (const Storage storage : pool_) {
        const double score = score_of(storage);
        if (victim == kNone || score <= lowest) {
          victim = storage;
          lowest = score;
        }
        if (lowest == 0) {
          break;
        }
      }
      ++result_.evictions;
      evict(victim);
    }
  }

  void evict(Storage own) {
    forget_neighborhoods(own);
    StorageState& storage = storages_[own];
    storage.resident = false;
    usage_ -= workload_.size_of[own];
    leave_pool(own);
    for (const Tensor tensor : storage.tensors) {
      tensors_[tensor].defined = false;
    }
    storage.set = static_cast<uint32_t>(set_parents_.size());
    set_parents_.push_back(storage.set);
    set_costs_.push_back(storage.cost);
    for (const auto* neighbors : {&storage.parents, &storage.children}) {
      for (const Storage neighbor : *neighbors) {
        const StorageState& other = storages_[neighbor];
        if (!other.resident && other.set != kNone) {
          join_sets(other.set, storage.set);
        }
      }
    }
  }

  void come_back(Storage own) {
    forget_neighborhoods(own);
    StorageState& storage = storages_[own];
    storage.resident = true;
    if (storage.set != kNone) {
      set_costs_[find_set(storage.set)] -= storage.cost;
      storage.set = kNone;
    }
  }

  void pin(Storage own) {
    if (storages_[own].pins++ == 0) {
      leave_pool(own);
    }
  }
  void unpin(Storage own) {
    if (--storages_[own].pins == 0) {
      join_pool(own);
    }
  }
  void join_pool(Storage own) {
    StorageState& storage = storages_[own];
    if (storage.resident && storage.pins == 0 && !storage.constant &&
        !storage.in_pool) {
      storage.place = pool_.insert(pool_.end(), own);
      storage.in_pool = true;
    }
  }
  void leave_pool(Storage own) {
    StorageState& storage = storages_[own];
    if (storage.in_pool) {
      pool_.erase(storage.place);
      storage.in_pool = false;
    }
  }

  // --- scores ---

  double score_of(Storage own) {
    StorageState& storage = storages_[own];
    const auto size = static_cast<double>(workload_.size_of[own]);
    const auto staleness = static_cast<double>(clock_ - storage.last_access);
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

  // Calls `visit(Storage)` for what `own` reaches through evicted storages,
  // on one side; goes on behind what is evicted.
  template <class Visit>
  void walk(Storage own, bool to_children, Visit visit) {
    reached_.assign(1, own);
    for (size_t i = 0; i < reached_.size(); ++i) {
      const StorageState& storage = storages_[reached_[i]];
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
    const StorageState& storage = storages_[own];
    for (const auto* neighbors : {&storage.parents, &storage.children}) {
      for (const Storage neighbor : *neighbors) {
        const StorageState& other = storages_[neighbor];
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
  const Bytes budget_;
  Ticks clock_ = 1;
  Bytes usage_ = 0;
  SimulationResult result_;
  std::vector<TensorState> tensors_;
  std::vector<StorageState> storages_;
  std::list<Storage> pool_;
  std::vector<uint32_t> set_parents_;
  std::vector<CostNs> set_costs_;
  std::vector<uint32_t> sets_seen_; // scratch
  std::vector<uint64_t> marks_; // by storage
  uint64_t mark_ = 0;
  std::vector<Storage> reached_; // scratch
};

struct Entry {
  const char* name;
  DtrRuntime::Score score;
};

constexpr Entry kScores[] = {
    {"dtr", DtrRuntime::Score::Dtr},
    {"dtr_eq", DtrRuntime::Score::DtrEq},
    {"largest", DtrRuntime::Score::Largest},
    {"lru", DtrRuntime::Score::Lru},
    {"msps", DtrRuntime::Score::Msps},
};

} // namespace

const std::vector<std::string>& dtr_policy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Entry& entry : kScores) {
      all.emplace_back(entry.name);
    }
    return all;
  }();
  return names;
}

SimulationResult simulate_as_dtr(
    const Workload& workload,
    const std::string& policy,
    Bytes budget) {
  std::string known;
  for (const Entry& entry : kScores) {
    if (policy == entry.name) {
      return DtrRuntime(workload, entry.score, budget).run();
    }
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  throw UsageError(
      "DTR's simulator has no policy \"" + policy + "\"; it has " + known);
}

} // namespace c10::remat
