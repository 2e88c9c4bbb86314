#pragma once

#include "Export.h"
#include "Ids.h"
#include "policy/PlacementPlan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace c10::remat {

// An allocation that no free block serves and that would take usage above the
// limit if it got memory of its own.
struct MemoryRequest {
  Bytes size = 0; // of the block, as the allocator rounds it
  // Bytes by which usage would pass the limit with a new segment for it.
  Bytes shortage = 0;
  Bytes unused = 0; // reserved, but in use by nobody
  Bytes reserved = 0; // in use or not
  // A plan wants it at the upper end; see Note [Two ends].
  bool stays = false;
  // What the allocator needs to tell which blocks could serve the request;
  // null: there is none, only the shortage.
  const void* allocator_key = nullptr;
};

// One block of a segment. Free ones have no owner; neither have those whose
// memory remat does not manage.
struct BlockView {
  const void* key = nullptr; // the allocator's own name for it
  Bytes size = 0;
  void* owner = nullptr; // as told to `DeviceMemory::set_owner`
  bool free = false;
  bool slides = false; // DeviceMemory::slide_down may be called for it
};

// Neighboring memory, its blocks in the order of addresses.
struct SegmentView {
  uintptr_t address = 0; // of the first block
  std::vector<BlockView> blocks;
  // The request can be served by neighboring blocks of this segment once they
  // are free. Others count only as segments to be given back whole.
  bool serves_request = false;
  // Usage falls by the segment's size once all its blocks are free.
  bool releasable = false;
  // Evictable bytes lie here, and may be moved to its free blocks.
  bool takes_moves = false;
};

struct AddressRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// Where the allocator puts what a thread allocates: bytes that can be
// evicted and bytes that cannot lie in different segments.
enum class Placement : uint8_t { Leaf, Evictable };

// Makes room for the allocator of a device. Called with none of the
// allocator's locks held.
class PressureHandler {
 public:
  virtual ~PressureHandler() = default;
  // Returns whether anything was given back, so that another try may succeed.
  virtual bool relieve(const MemoryRequest& request) noexcept = 0;
  // For the error that follows when `relieve` has returned false: what holds
  // the memory and what to do. Counts an out-of-memory error.
  virtual std::string explain_out_of_memory(Bytes size) = 0;
  // See Config::windows. Asked when it becomes the handler.
  virtual bool uses_windows() const {
    return true;
  }
};

// The memory of one device, as its allocator sees it. Thread-safe; never calls
// a PressureHandler with a lock held.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // What the budget bounds: reserved bytes on CUDA.
  virtual Bytes usage() const noexcept = 0;
  // The most since `reset_peak`.
  virtual Bytes peak() const noexcept = 0;
  virtual void reset_peak() noexcept = 0;
  // How often the driver was asked for memory or given some back.
  virtual int64_t driver_calls() const noexcept = 0;

  // At most `limit` bytes are in use from now on: `handler`, which must outlive
  // the limit, is asked before that would be passed, and when the device itself
  // has no more. A null handler turns both off.
  virtual void set_limit(Bytes limit, PressureHandler* handler) noexcept = 0;

  // The block at `address`, which the allocator has given out, holds the bytes
  // of `owner` until it is freed or that is taken back with null.
  virtual void set_owner(const void* address, void* owner) noexcept = 0;

  // Gives memory that is cached but not in use back to the device.
  virtual void release_free_memory() = 0;

  // A stream of the device is being captured into a graph: nothing may be
  // evicted or asked of events.
  virtual bool is_capturing() const noexcept = 0;
  // The current stream of this thread is.
  virtual bool captures_graph() const noexcept = 0;
  // The block at `address` is of a private pool (a graph's, a MemPool's):
  // launches of a graph, which nobody sees, may write there.
  virtual bool is_private(const void* address) const noexcept = 0;

  // Allocates a free block of `placement` that serves as well as the one that
  // `key` names, which has an owner, and copies the bytes there in the order of
  // the stream that both are of. Not where it would touch one of `avoided`.
  // Null if there is no such block, or while a stream is captured.
  virtual void* copy_to_free_block(
      const void* key,
      const std::vector<AddressRange>& avoided,
      Placement placement) noexcept = 0;
  // The block that `key` names, which has an owner, changes places with the
  // free one before it, if there is one: the bytes are copied in the order of
  // the stream that both are of. Sets `address` to where it is then. False if
  // copying failed.
  virtual bool slide_down(const void* key, void*& address) noexcept = 0;
  // When an iteration begins: brings evictable memory that has holes into one
  // piece, if that is for long.
  virtual void close_holes() noexcept = 0;
  // How long the device takes to copy that much, about, to a place `distance`
  // bytes away.
  virtual CostNs copy_cost(Bytes size, Bytes distance) const noexcept = 0;

  // The segments that matter for `request`. Takes the allocator's lock; the
  // engine's, if held, comes first.
  virtual std::vector<SegmentView> segments(
      const MemoryRequest& request) const = 0;
};

// By index of the CUDA device; null: there is none, or its allocator cannot be
// limited (a pluggable one, cudaMallocAsync). libc10_cuda registers its own.
REMAT_API DeviceMemory* cuda_memory(int device) noexcept;
REMAT_API void register_cuda_memory(int device, DeviceMemory* memory);

// Of what this thread allocates next.
REMAT_API Placement placement() noexcept;
// Null: there is none.
REMAT_API const PlacementPlan* placement_plan() noexcept;

class REMAT_API PlacementGuard {
 public:
  // `plan` must outlive the guard.
  explicit PlacementGuard(
      Placement placement,
      const PlacementPlan* plan = nullptr) noexcept;
  ~PlacementGuard();
  PlacementGuard(const PlacementGuard&) = delete;
  PlacementGuard& operator=(const PlacementGuard&) = delete;

 private:
  Placement before_;
  const PlacementPlan* plan_before_;
};

} // namespace c10::remat
