#include "Neighborhood.h"

#include <algorithm>

namespace c10::remat {

bool has_absent_output(const OpGraph& graph, OpId op) {
  const auto& outputs = graph[op].outputs;
  return std::any_of(outputs.begin(), outputs.end(), [&](VersionId output) {
    return output && is_absent(graph[output]);
  });
}

bool has_absent_reader(const OpGraph& graph, VersionId id) {
  const auto& readers = graph[id].readers;
  return std::any_of(readers.begin(), readers.end(), [&](OpId reader) {
    return has_absent_output(graph, reader);
  });
}

Neighborhood::Cost Neighborhood::cost(
    const OpGraph& graph,
    VersionId id,
    Side side) {
  start();
  const OpId own = graph[id].producer;
  mark(own);
  Cost result{graph[own].cost, true};
  size_t ops = 0;
  size_t links = 0;
  ops_.assign(1, own);
  for (size_t i = 0; i < ops_.size(); ++i) {
    for (const VersionId input : graph[ops_[i]].inputs) {
      if (++links > kMaxLinks) {
        result.is_complete = false;
        return result;
      }
      const StorageVersion& version = graph[input];
      if (!is_absent(version) || !mark(version.producer)) {
        continue;
      }
      if (++ops > kMaxOps) {
        result.is_complete = false;
        return result;
      }
      result.cost += graph[version.producer].cost;
      ops_.push_back(version.producer);
    }
  }
  if (side == Side::Ancestors) {
    return result;
  }
  versions_.assign(1, id);
  for (size_t i = 0; i < versions_.size(); ++i) {
    for (const OpId reader : graph[versions_[i]].readers) {
      if (++links > kMaxLinks) {
        result.is_complete = false;
        return result;
      }
      if (!mark(reader)) {
        continue;
      }
      bool absent = false;
      for (const VersionId output : graph[reader].outputs) {
        if (output && is_absent(graph[output])) {
          absent = true;
          versions_.push_back(output);
        }
      }
      if (!absent) {
        continue;
      }
      if (++ops > kMaxOps) {
        result.is_complete = false;
        return result;
      }
      result.cost += graph[reader].cost;
    }
  }
  return result;
}

void Neighborhood::find_affected(
    const OpGraph& graph,
    const std::vector<VersionId>& changed,
    std::vector<VersionId>& affected) {
  const auto visit = [&](VersionId found) {
    const StorageVersion& version = graph[found];
    if (is_in_use(version) && version.producer) {
      affected.push_back(found);
    }
  };
  const size_t most_ops = kMaxAffectedOps * changed.size();
  const size_t most_links = kMaxLinks * changed.size();

  start();
  size_t links = 0;
  ops_.clear();
  for (const VersionId id : changed) {
    visit(id);
    const OpId own = graph[id].producer;
    if (own && mark(own)) {
      ops_.push_back(own);
    }
  }
  for (size_t i = 0; i < ops_.size() && i < most_ops; ++i) {
    for (const VersionId input : graph[ops_[i]].inputs) {
      if (++links > most_links) {
        break;
      }
      const StorageVersion& version = graph[input];
      if (!is_absent(version)) {
        visit(input);
      } else if (mark(version.producer)) {
        ops_.push_back(version.producer);
      }
    }
  }

  start();
  links = 0;
  size_t ops = 0;
  versions_ = changed;
  for (size_t i = 0; i < versions_.size() && ops < most_ops; ++i) {
    for (const OpId reader : graph[versions_[i]].readers) {
      if (++links > most_links) {
        break;
      }
      if (!mark(reader)) {
        continue;
      }
      ++ops;
      for (const VersionId output : graph[reader].outputs) {
        if (!output) {
          continue;
        }
        if (is_absent(graph[output])) {
          versions_.push_back(output);
        } else {
          visit(output);
        }
      }
    }
  }
}

void Neighborhood::start() {
  if (++current_mark_ == 0) {
    std::fill(marks_.begin(), marks_.end(), 0);
    current_mark_ = 1;
  }
}

bool Neighborhood::mark(OpId op) {
  if (op.index >= marks_.size()) {
    marks_.resize(std::max<size_t>(op.index + 1, 2 * marks_.size()));
  }
  if (marks_[op.index] == current_mark_) {
    return false;
  }
  marks_[op.index] = current_mark_;
  return true;
}

} // namespace c10::remat
