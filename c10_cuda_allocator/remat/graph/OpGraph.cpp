#include "OpGraph.h"

#include <algorithm>

namespace c10::remat {

VersionId OpGraph::add_version(Bytes size, void* holder, Ticks now) {
  VersionId id;
  if (free_versions_.empty()) {
    id.index = static_cast<uint32_t>(versions_.size());
    versions_.emplace_back();
  } else {
    id = free_versions_.back();
    free_versions_.pop_back();
  }
  StorageVersion& version = versions_[id.index];
  version.size = size;
  version.holder = holder;
  version.last_access = now;
  version.created = next_sequence_++;
  version.alive = true;
  return id;
}

OpId OpGraph::add_op(OpRecord&& record) {
  OpId id;
  if (free_ops_.empty()) {
    id.index = static_cast<uint32_t>(ops_.size());
    ops_.emplace_back();
  } else {
    id = free_ops_.back();
    free_ops_.pop_back();
  }
  record.sequence = next_sequence_++;
  record.alive = true;
  record.live_outputs = 0;
  record.reader_positions.clear();
  for (const VersionId input : record.inputs) {
    auto& readers = versions_[input.index].readers;
    record.reader_positions.push_back(static_cast<uint32_t>(readers.size()));
    readers.push_back(id);
  }
  for (const VersionId output : record.outputs) {
    StorageVersion& version = versions_[output.index];
    REMAT_ASSERT(!version.producer);
    version.producer = id;
    ++record.live_outputs;
  }
  ops_[id.index] = std::move(record);
  ++op_count_;
  return id;
}

bool OpGraph::is_needed(const StorageVersion& version) {
  return version.owned || version.pins != 0 || version.reservations != 0 ||
      !version.readers.empty();
}

void OpGraph::drop_reader(VersionId id, uint32_t position) {
  auto& readers = versions_[id.index].readers;
  const OpId last = readers.back();
  readers[position] = last;
  readers.pop_back();
  if (position == readers.size()) {
    return;
  }
  OpRecord& moved = ops_[last.index];
  for (size_t i = 0; i < moved.inputs.size(); ++i) {
    if (moved.inputs[i] == id) {
      moved.reader_positions[i] = position;
      return;
    }
  }
}

void OpGraph::drop_producer(
    VersionId id,
    VersionIds& orphans,
    Garbage& garbage) {
  StorageVersion& version = versions_[id.index];
  const OpId producer = version.producer;
  if (!producer) {
    return;
  }
  version.producer = OpId{};
  OpRecord& op = ops_[producer.index];
  std::replace(op.outputs.begin(), op.outputs.end(), id, VersionId{});
  if (--op.live_outputs != 0) {
    garbage.shrunk_ops.push_back(producer);
    return;
  }
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    drop_reader(op.inputs[i], op.reader_positions[i]);
    orphans.push_back(op.inputs[i]);
  }
  op.alive = false;
  --op_count_;
  garbage.ops.push_back(producer);
}

void OpGraph::make_leaf(VersionId id, Garbage& garbage) {
  VersionIds orphans;
  drop_producer(id, orphans, garbage);
  for (const VersionId orphan : orphans) {
    collect(orphan, garbage);
  }
}

void OpGraph::collect(VersionId id, Garbage& garbage) {
  VersionIds candidates{id};
  while (!candidates.empty()) {
    const VersionId candidate = candidates.back();
    candidates.pop_back();
    StorageVersion& version = versions_[candidate.index];
    if (!version.alive || is_needed(version)) {
      continue;
    }
    drop_producer(candidate, candidates, garbage);
    version.alive = false;
    garbage.versions.push_back(candidate);
  }
}

void OpGraph::free_slot(VersionId id) {
  REMAT_ASSERT(!versions_[id.index].alive);
  versions_[id.index] = StorageVersion{};
  free_versions_.push_back(id);
}

void OpGraph::free_slot(OpId id) {
  REMAT_ASSERT(!ops_[id.index].alive);
  free_ops_.push_back(id);
}

void OpGraph::check_invariants() const {
  for_each_version([&](VersionId id) {
    const StorageVersion& version = (*this)[id];
    REMAT_ASSERT(is_needed(version));
    REMAT_ASSERT(
        !version.kept ||
        (version.resident && !version.owned && version.producer));
    if (version.producer) {
      const OpRecord& op = (*this)[version.producer];
      REMAT_ASSERT(op.alive);
      REMAT_ASSERT(std::count(op.outputs.begin(), op.outputs.end(), id) == 1);
    } else {
      // Nothing could bring a leaf back.
      REMAT_ASSERT(version.resident);
    }
    for (size_t i = 0; i < version.readers.size(); ++i) {
      const OpRecord& op = (*this)[version.readers[i]];
      REMAT_ASSERT(op.alive);
      const auto input = std::find(op.inputs.begin(), op.inputs.end(), id);
      REMAT_ASSERT(input != op.inputs.end());
      REMAT_ASSERT(op.reader_positions[input - op.inputs.begin()] == i);
    }
  });
  for_each_op([&](OpId id) {
    const OpRecord& op = (*this)[id];
    size_t outputs = 0;
    for (const VersionId output : op.outputs) {
      if (output) {
        ++outputs;
        REMAT_ASSERT((*this)[output].alive);
        REMAT_ASSERT((*this)[output].producer == id);
      }
    }
    REMAT_ASSERT(outputs == op.live_outputs && outputs > 0);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const StorageVersion& input = (*this)[op.inputs[i]];
      REMAT_ASSERT(input.alive);
      REMAT_ASSERT(input.readers[op.reader_positions[i]] == id);
      if (input.producer) {
        REMAT_ASSERT((*this)[input.producer].sequence < op.sequence);
      }
    }
  });
}

} // namespace c10::remat
