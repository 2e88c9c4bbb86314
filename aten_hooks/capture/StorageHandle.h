#pragma once

#include "StreamUse.h"

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/remat/Engine.h>
#include <c10/remat/StorageHooks.h>
#include <c10/util/ArrayRef.h>

#include <mutex>
#include <optional>
#include <vector>

namespace at::remat {

using c10::remat::Engine;
using c10::remat::VersionId;

// Holds the bytes of a managed storage, and ties the program's StorageImpl to
// the graph. The StorageImpl's DataPtr has `managed_deleter` as its deleter and
// the handle as its context; while the bytes are evicted its pointer is that of
// Note [The address of evicted bytes].
//
// `data` and `storage` change under the engine's lock only. While an op has
// the storage pinned they do not change at all.
struct StorageHandle {
  at::DataPtr data; // the allocator's own; empty while evicted
  c10::StorageImpl* storage = nullptr; // null once the program's is gone
  Engine* engine = nullptr;
  VersionId version; // what the storage holds now; written under the lock
  size_t nbytes = 0;
  c10::Device device = c10::kCPU;
  // Aliases through which other code may write at any time (numpy, DLPack).
  int aliases = 0;
  bool is_parameter = false; // the engine knows
  StreamUse streams; // under the lock of `lock_stream_uses`
};

// Null if `storage` is not managed.
inline StorageHandle* handle_of(c10::StorageImpl& storage) {
  const at::DataPtr& data_ptr = storage._mutable_data_ptr_no_checks();
  return c10::remat::is_managed(data_ptr.get_deleter())
      ? static_cast<StorageHandle*>(data_ptr.get_context())
      : nullptr;
}

// Puts `storage`, which no other thread knows, under management; the caller
// tells the engine of it. The address does not change.
StorageHandle* manage(c10::StorageImpl& storage, Engine& engine);

// The same for one that other threads may be reading, as a leaf. Returns the
// handle that it has, if another thread was first.
StorageHandle* manage_leaf(c10::StorageImpl& storage, Engine& engine);
// Comes before the engine's lock.
std::mutex& manage_leaf_mutex();

// Gives `storage` its own DataPtr back; its bytes must be resident. The handle
// is left without a storage.
void detach(StorageHandle& handle);

// In the order in which Engine::begin_op wants them.
c10::remat::Holders holders_of(
    c10::ArrayRef<StorageHandle*> read,
    c10::ArrayRef<StorageHandle*> written);

// The engine's way to the bytes.
class StoragePortImpl final : public c10::remat::StoragePort {
 public:
  void release(c10::remat::StorageVersion& version) noexcept override;
  void adopt(
      c10::remat::StorageVersion& version,
      std::unique_ptr<c10::remat::Buffer> buffer) noexcept override;
  bool move(
      c10::remat::StorageVersion& version,
      const void* block,
      const std::vector<c10::remat::AddressRange>& avoided,
      c10::remat::Placement placement) noexcept override;
  bool slide(c10::remat::StorageVersion& version, const void* block) noexcept
      override;
  void set_version(void* holder, VersionId id) noexcept override;
  VersionId version_of(void* holder) const noexcept override;
  void disown(c10::remat::StorageVersion& version) noexcept override;
  void forget(c10::remat::StorageVersion& version) noexcept override;
};

// Bytes made by a replay.
struct ReplayedBuffer final : c10::remat::Buffer {
  at::DataPtr data;
  std::optional<c10::Stream> allocated_on;
  std::optional<c10::Stream> written_on;
};

} // namespace at::remat
