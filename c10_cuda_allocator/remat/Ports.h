#pragma once

#include "DeviceMemory.h"
#include "graph/OpGraph.h"

#include <limits>
#include <memory>
#include <vector>

namespace c10::remat {

// The engine's three ways out. The real ones are in aten_hooks; the simulator
// and the tests have their own.

// Bytes that a replay made and no version holds yet.
struct Buffer {
  virtual ~Buffer() = default;
};

// Holds the bytes. Called with the engine's lock held: no dispatch, no
// allocation on the device, no foreign code.
class StoragePort {
 public:
  virtual ~StoragePort() = default;
  // Gives the bytes back to the allocator; the holder stays.
  virtual void release(StorageVersion& version) noexcept = 0;
  // The bytes of `version` are these from now on. It may have no holder yet.
  virtual void adopt(
      StorageVersion& version,
      std::unique_ptr<Buffer> buffer) noexcept = 0;
  // Gives `version` other bytes with the same content, not in `avoided`;
  // `block` is the key of its block. False: it has still those that it had.
  virtual bool move(
      StorageVersion& /*version*/,
      const void* /*block*/,
      const std::vector<AddressRange>& /*avoided*/,
      Placement /*placement*/) noexcept {
    return false;
  }
  // The same over free bytes before the block; see DeviceMemory::slide_down.
  // False: its content may be lost.
  virtual bool slide(
      StorageVersion& /*version*/,
      const void* /*block*/) noexcept {
    return false;
  }
  // `holder` holds `id` from now on, and what it holds now. Threads that share
  // a storage may be about to name a version that a write has just replaced.
  virtual void set_version(void* holder, VersionId id) noexcept = 0;
  virtual VersionId version_of(void* holder) const noexcept = 0;
  // The program's storage is gone; the bytes stay with the holder.
  virtual void disown(StorageVersion& version) noexcept = 0;
  // The version is forgotten, and so is its holder, if it has one.
  virtual void forget(StorageVersion& version) noexcept = 0;
};

// How full the device is.
class DevicePort {
 public:
  virtual ~DevicePort() = default;
  virtual Bytes usage() const = 0;
  // See DeviceMemory::segments; none where blocks have no neighbors.
  virtual std::vector<SegmentView> segments(
      const MemoryRequest& /*request*/) const {
    return {};
  }
  // See DeviceMemory::copy_cost. Asked only of a device that has segments.
  virtual CostNs copy_cost(Bytes /*size*/, Bytes /*distance*/) const {
    return std::numeric_limits<CostNs>::max();
  }
  // See DeviceMemory::close_holes.
  virtual void close_holes() noexcept {}
};

// One op to run again. What it points to stays valid and, but for the inputs
// that it consumes, unchanged until `replay` returns.
struct ReplayRequest {
  const OpRecord* record = nullptr;
  std::vector<StorageVersion*> inputs; // resident and pinned
  std::vector<const StorageVersion*> outputs; // null: its bytes are not wanted
  // Per overwrite: the input is read again later, so write over a copy. Where
  // this is false the op consumes the input's bytes, also if it throws.
  std::vector<bool> keep_input;
};

// Runs ops again. Called without the engine's lock.
class ReplayPort {
 public:
  virtual ~ReplayPort() = default;
  // Returns the bytes of each wanted output. Throws what the op throws.
  virtual std::vector<std::unique_ptr<Buffer>> replay(
      const ReplayRequest& request) = 0;
  // Returns a copy of the bytes of `version`, which is resident and pinned;
  // null if there is no memory for one.
  virtual std::unique_ptr<Buffer> copy(const StorageVersion& version) = 0;
};

} // namespace c10::remat
