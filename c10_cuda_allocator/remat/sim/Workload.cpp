#include "Workload.h"

#include "../Errors.h"
#include "SimrdLog.h"
#include "TraceWorkload.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace c10::remat {

Workload::Storage Workload::add_storage(Bytes size) {
  size_of.push_back(size);
  return static_cast<Storage>(size_of.size() - 1);
}

Workload::Tensor Workload::add_tensor(Storage storage) {
  storage_of.push_back(storage);
  return static_cast<Tensor>(storage_of.size() - 1);
}

CostNs Workload::cost() const {
  CostNs total = 0;
  for (const Step& step : steps) {
    total += step.cost;
  }
  return total;
}

Bytes Workload::peak() const {
  std::vector<uint32_t> references(size_of.size());
  std::vector<bool> is_made(size_of.size());
  Bytes live = 0;
  Bytes most = 0;
  const auto hold = [&](Tensor tensor, bool takes_bytes) {
    const Storage storage = storage_of[tensor];
    ++references[storage];
    if (!is_made[storage]) {
      is_made[storage] = true;
      live += takes_bytes ? size_of[storage] : 0;
    }
  };
  for (const Step& step : steps) {
    switch (step.kind) {
    case Step::Kind::Constant:
      hold(step.tensor, true);
      break;
    case Step::Kind::Op:
      for (uint32_t i = 0; i < step.outputs.size(); ++i) {
        const bool takes_over = std::any_of(
            step.overwrites.begin(),
            step.overwrites.end(),
            [&](const Overwrite& overwrite) { return overwrite.output == i; });
        hold(step.outputs[i], !takes_over);
      }
      for (const Overwrite& overwrite : step.overwrites) {
        --references[storage_of[step.inputs[overwrite.input]]];
      }
      break;
    case Step::Kind::Retain:
      ++references[storage_of[step.tensor]];
      break;
    case Step::Kind::Release:
      if (--references[storage_of[step.tensor]] == 0) {
        live -= size_of[storage_of[step.tensor]];
        is_made[storage_of[step.tensor]] = false;
      }
      break;
    case Step::Kind::Access:
    case Step::Kind::LeafWrite:
    case Step::Kind::ParameterWrite:
      break;
    }
    most = std::max(most, live);
  }
  return most;
}

Workload repeated(const Workload& workload, size_t times) {
  using Step = Workload::Step;
  using Kind = Step::Kind;
  Workload all;
  all.name = workload.name;
  all.storage_of = workload.storage_of;
  all.size_of = workload.size_of;
  std::vector<Workload::Tensor> constants;
  for (const Step& step : workload.steps) {
    if (step.kind == Kind::Constant) {
      constants.push_back(step.tensor);
      all.steps.push_back(step);
    }
  }
  const auto add = [&](Kind kind, Workload::Tensor tensor) {
    Step step;
    step.kind = kind;
    step.tensor = tensor;
    all.steps.push_back(std::move(step));
  };
  for (size_t i = 0; i < times; ++i) {
    std::vector<int64_t> references(workload.size_of.size());
    std::vector<Workload::Tensor> holder(workload.size_of.size());
    const auto refer = [&](Workload::Tensor tensor, int by) {
      const Workload::Storage storage = workload.storage_of[tensor];
      references[storage] += by;
      holder[storage] = tensor;
    };
    // The program's references to what comes from outside come and go; one
    // more keeps it.
    for (const Workload::Tensor constant : constants) {
      refer(constant, 1);
      add(Kind::Retain, constant);
    }
    for (const Step& step : workload.steps) {
      switch (step.kind) {
      case Kind::Constant:
        continue;
      case Kind::Op:
        for (const Workload::Tensor output : step.outputs) {
          refer(output, 1);
        }
        for (const Workload::Overwrite& overwrite : step.overwrites) {
          refer(step.inputs[overwrite.input], -1);
        }
        break;
      case Kind::Retain:
        refer(step.tensor, 1);
        break;
      case Kind::Release:
        refer(step.tensor, -1);
        break;
      case Kind::Access:
      case Kind::LeafWrite:
      case Kind::ParameterWrite:
        break;
      }
      all.steps.push_back(step);
    }
    for (size_t storage = 0; storage < references.size(); ++storage) {
      for (; references[storage] > 0; --references[storage]) {
        if (workload.ends_resident) {
          add(Kind::Access, holder[storage]);
        }
        add(Kind::Release, holder[storage]);
      }
    }
    for (const Workload::Tensor constant : constants) {
      add(Kind::ParameterWrite, constant);
    }
  }
  return all;
}

Workload read_workload(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw UsageError(
        "cannot read a trace from \"" + path + "\": " + std::strerror(errno));
  }
  constexpr char kOurs[] = "{\"remat_trace\":";
  std::string start(sizeof(kOurs) - 1, '\0');
  file.read(&start[0], static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(file.gcount()));
  file.clear();
  file.seekg(0);
  return start == kOurs ? read_trace_workload(file, path)
                        : read_simrd_log(file, path);
}

} // namespace c10::remat
