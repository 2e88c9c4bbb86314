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
