#pragma once

#include "../Export.h"
#include "../Ids.h"
#include "OpRecord.h"
#include "StorageVersion.h"

#include <deque>
#include <memory>
#include <vector>

namespace c10::remat {

// What collecting found unneeded, for the engine to release. Payloads are
// destroyed only after the engine's lock is released: that may run foreign
// code.
struct Garbage {
  VersionIds versions; // keep their slots until `free_slot`
  OpIds ops; // likewise, with what was recorded
  OpIds shrunk_ops; // live on without one of their outputs
  std::vector<std::shared_ptr<OpPayload>> payloads;
};

// Versions and the op records between them, a directed acyclic graph.
//
// A version lives while it is owned, pinned, or read by a record. A record
// lives while one of its outputs that still has it as producer lives. So a
// history disappears as soon as nothing can ask for it.
class OpGraph {
 public:
  VersionId add_version(Bytes size, void* holder, Ticks now);

  // Takes over what `record` holds; its outputs must be leaves so far.
  OpId add_op(OpRecord&& record);

  StorageVersion& operator[](VersionId id) {
    return versions_[id.index];
  }
  const StorageVersion& operator[](VersionId id) const {
    return versions_[id.index];
  }
  OpRecord& operator[](OpId id) {
    return ops_[id.index];
  }
  const OpRecord& operator[](OpId id) const {
    return ops_[id.index];
  }

  bool is_leaf(VersionId id) const {
    return !(*this)[id].producer;
  }

  // May its bytes be given back now? Pinned, escaped and leaf versions may
  // not, nor those that no storage owns.
  bool is_evictable(VersionId id) const {
    const StorageVersion& version = (*this)[id];
    return is_in_use(version) && is_unattached(version) && version.producer &&
        version.size > 0;
  }

  // The same, and no replay under way will read it.
  bool is_spare(VersionId id) const {
    return is_evictable(id) && (*this)[id].reservations == 0;
  }

  // May its bytes lie elsewhere from now on? Leaves may, too.
  bool is_movable(VersionId id) const {
    const StorageVersion& version = (*this)[id];
    return version.resident && version.hidden && is_unattached(version);
  }

  // Forgets how `id`, which is resident or unneeded, was made.
  void make_leaf(VersionId id, Garbage& garbage);

  // Unlinks `id`, and all history that only it kept, if nothing needs it any
  // more. What is unlinked is appended to `garbage`, whose slots stay taken
  // until `free_slot`.
  void collect(VersionId id, Garbage& garbage);
  void free_slot(VersionId id);
  void free_slot(OpId id);

  // A storage of the program holds `id` from now on; no longer.
  void own(VersionId id) {
    owned_count_ += (*this)[id].owned ? 0 : 1;
    (*this)[id].owned = true;
  }
  void disown(VersionId id) {
    owned_count_ -= (*this)[id].owned ? 1 : 0;
    (*this)[id].owned = false;
  }

  size_t owned_count() const {
    return owned_count_;
  }
  size_t version_count() const {
    return versions_.size() - free_versions_.size();
  }
  size_t op_count() const {
    return op_count_;
  }

  // Calls `visit(VersionId)` for every live version, in slot order.
  template <class Visitor>
  void for_each_version(Visitor&& visit) const {
    for (uint32_t i = 0; i < versions_.size(); ++i) {
      if (versions_[i].alive) {
        visit(VersionId{i});
      }
    }
  }
  template <class Visitor>
  void for_each_op(Visitor&& visit) const {
    for (uint32_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].alive) {
        visit(OpId{i});
      }
    }
  }

  // Throws std::logic_error if a link is one-sided, a count is off or an
  // evicted version cannot be rematerialized. Visits everything.
  void check_invariants() const;

  uint64_t next_sequence() const {
    return next_sequence_;
  }

 private:
  static bool is_needed(const StorageVersion& version);
  // Cuts `id` from its producer. A record without outputs goes, and the
  // versions that it read are appended to `orphans`.
  void drop_producer(VersionId id, VersionIds& orphans, Garbage& garbage);
  void drop_reader(VersionId id, uint32_t position);

  // Deques keep references valid while slots are added.
  std::deque<StorageVersion> versions_;
  std::deque<OpRecord> ops_;
  std::vector<VersionId> free_versions_;
  size_t owned_count_ = 0;
  std::vector<OpId> free_ops_;
  size_t op_count_ = 0;
  uint64_t next_sequence_ = 1;
};

} // namespace c10::remat
