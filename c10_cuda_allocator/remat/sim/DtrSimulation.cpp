#include "DtrStorages.h"
#include "Simulation.h"

#include "../Errors.h"

#include <algorithm>
#include <list>
#include <vector>

namespace c10::remat {

// Note [What DTR's simulator does]
// To read the authors' logs as they do, and to have their figures to compare
// with, this follows their runtime, as far as their paper (Kirisame et al.,
// ICLR 2021) and the published results tell. Where it differs from
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
  DtrRuntime(const Workload& workload, DtrStorages::Score score, Bytes budget)
      : workload_(workload),
        budget_(budget),
        tensors_(workload.storage_of.size()),
        storages_(workload, score) {
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
    DtrStorage& storage = storages_[storage_of(tensor)];
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
    DtrStorage& storage = storages_[own];
    const auto first = std::find_if(
        storage.tensors.begin(), storage.tensors.end(), [&](Tensor t) {
          return tensors_[t].op == op;
        });
    storage.cost += *first == tensor ? op_of(op).cost : 0;
    for (const Tensor input : op_of(op).inputs) {
      storages_.link(storage_of(input), own);
    }
  }

  void release(Tensor tensor) {
    --tensors_[tensor].references;
    const Storage own = storage_of(tensor);
    DtrStorage& storage = storages_[own];
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
      storages_.came_back(storage);
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
        const double score = storages_.score_of(storage, clock_);
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
    storages_.evicted(own);
    usage_ -= workload_.size_of[own];
    leave_pool(own);
    for (const Tensor tensor : storages_[own].tensors) {
      tensors_[tensor].defined = false;
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
    DtrStorage& storage = storages_[own];
    if (storage.resident && storage.pins == 0 && !storage.constant &&
        !storage.in_pool) {
      storage.place = pool_.insert(pool_.end(), own);
      storage.in_pool = true;
    }
  }
  void leave_pool(Storage own) {
    DtrStorage& storage = storages_[own];
    if (storage.in_pool) {
      pool_.erase(storage.place);
      storage.in_pool = false;
    }
  }

  const Workload& workload_;
  const Bytes budget_;
  Ticks clock_ = 1;
  Bytes usage_ = 0;
  SimulationResult result_;
  std::vector<TensorState> tensors_;
  DtrStorages storages_;
  std::list<Storage> pool_;
};

struct Entry {
  const char* name;
  DtrStorages::Score score;
};

constexpr Entry kScores[] = {
    {"dtr", DtrStorages::Score::Dtr},
    {"dtr_eq", DtrStorages::Score::DtrEq},
    {"largest", DtrStorages::Score::Largest},
    {"lru", DtrStorages::Score::Lru},
    {"msps", DtrStorages::Score::Msps},
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
