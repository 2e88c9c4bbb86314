#include "StorageHandle.h"

#include "EvictedAddress.h"

#include <c10/remat/BlockingSection.h>
#include <c10/remat/DeviceMemory.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace at::remat {

namespace {

// Note [Only the address changes]
// Evicting must not touch the context of a DataPtr: another thread may be
// destroying the storage, is past clearing the context, and waits for the
// engine's lock in the deleter; a context written back would be deleted twice.
// Storing the address alone is safe, since the StorageImpl lives until that
// deleter returns. DataPtr has no setter for it, and a patch would not reach
// code compiled against stock headers, so the address is stored through the
// class's fixed layout: its first word. Checked when remat is first used.
void** address_slot(at::DataPtr& data_ptr) {
  return reinterpret_cast<void**>(&data_ptr);
}

bool check_address_slot() {
  int probe = 0;
  at::DataPtr data_ptr(&probe, c10::kCPU);
  TORCH_INTERNAL_ASSERT(
      *address_slot(data_ptr) == &probe,
      "remat: this build of c10 lays out DataPtr in another way than the one "
      "remat was written for");
  return true;
}

void set_address(c10::StorageImpl& storage, void* address) {
  __atomic_store_n(
      address_slot(storage._mutable_data_ptr_no_checks()),
      address,
      __ATOMIC_RELEASE);
}

// The allocator of `bytes` learns whose they are. Once the engine knows, too:
// the allocator asks it about owners.
void tell_owner(const at::DataPtr& bytes, void* owner) {
  if (!bytes.device().is_cuda() || bytes.get() == nullptr) {
    return;
  }
  if (auto* memory = c10::remat::cuda_memory(bytes.device().index())) {
    memory->set_owner(bytes.get(), owner);
  }
}

StorageHandle* holder_of(c10::remat::StorageVersion& version) {
  return static_cast<StorageHandle*>(version.holder);
}

// The allocator may use the bytes again in the order of one stream.
void prepare_to_free(StorageHandle& handle) noexcept {
  if (handle.device.is_cpu()) {
    return;
  }
  const auto lock = lock_stream_uses(handle.device);
  if (handle.storage == nullptr) {
    handle.streams.before_death(handle.data);
    return;
  }
  const auto* memory = c10::remat::cuda_memory(handle.device.index());
  handle.streams.before_eviction(
      handle.data, memory != nullptr && memory->is_capturing());
}

// Calls `copy(handle, memory)` when the bytes may be read in the order of the
// stream that their block is of. False if that is not a GPU's, or `copy` is.
template <class Copy>
bool copy_elsewhere(c10::remat::StorageVersion& version, Copy&& copy) noexcept {
  StorageHandle& handle = *holder_of(version);
  auto* memory = c10::remat::cuda_memory(handle.device.index());
  if (memory == nullptr) {
    return false;
  }
  const auto lock = lock_stream_uses(handle.device);
  handle.streams.before_eviction(handle.data, memory->is_capturing());
  return copy(handle, *memory);
}

// The bytes have been copied to `address` in the order of their stream.
void set_copied(StorageHandle& handle, void* address) {
  handle.data =
      at::DataPtr(address, address, handle.data.get_deleter(), handle.device);
  handle.streams.made_by_replay(
      handle.streams.allocated_on(), handle.streams.allocated_on());
  tell_owner(handle.data, &handle);
  if (handle.storage != nullptr) {
    set_address(*handle.storage, address);
  }
}

} // namespace

StorageHandle* manage(c10::StorageImpl& storage, Engine& engine) {
  static const bool checked = check_address_slot();
  (void)checked;
  auto handle = std::make_unique<StorageHandle>();
  handle->storage = &storage;
  handle->engine = &engine;
  handle->nbytes = storage.nbytes();
  handle->device = storage.device();
  void* const address = storage._mutable_data_ptr_no_checks().get();
  // Moving leaves the address in place; see Note [Only the address changes].
  handle->data = std::move(storage._mutable_data_ptr_no_checks());
  storage.set_data_ptr_noswap(at::DataPtr(
      address, handle.get(), &c10::remat::managed_deleter, handle->device));
  return handle.release();
}

std::mutex& manage_leaf_mutex() {
  static std::mutex mutex;
  return mutex;
}

StorageHandle* manage_leaf(c10::StorageImpl& storage, Engine& engine) {
  const std::lock_guard<std::mutex> lock(manage_leaf_mutex());
  StorageHandle* handle = handle_of(storage);
  if (handle == nullptr) {
    handle = manage(storage, engine);
    engine.add_leaf(handle->nbytes, handle);
  }
  return handle;
}

void detach(StorageHandle& handle) {
  c10::StorageImpl& storage = *handle.storage;
  handle.storage = nullptr;
  tell_owner(handle.data, nullptr);
  prepare_to_free(handle); // when the storage that has them now will
  storage._mutable_data_ptr_no_checks().release_context();
  storage.set_data_ptr_noswap(std::move(handle.data));
}

c10::remat::Holders holders_of(
    c10::ArrayRef<StorageHandle*> read,
    c10::ArrayRef<StorageHandle*> written) {
  c10::remat::Holders holders;
  for (StorageHandle* handle : read) {
    holders.push_back(handle);
  }
  for (StorageHandle* handle : written) {
    holders.push_back(handle);
  }
  return holders;
}

void StoragePortImpl::release(c10::remat::StorageVersion& version) noexcept {
  StorageHandle* handle = holder_of(version);
  if (handle == nullptr) {
    return;
  }
  if (handle->storage != nullptr) {
    set_address(*handle->storage, evicted_address());
  }
  prepare_to_free(*handle);
  const c10::remat::NoInterpreterGuard guard;
  handle->data.clear();
}

void StoragePortImpl::adopt(
    c10::remat::StorageVersion& version,
    std::unique_ptr<c10::remat::Buffer> buffer) noexcept {
  auto& made = static_cast<ReplayedBuffer&>(*buffer);
  if (version.holder == nullptr) {
    auto* fresh = new StorageHandle;
    fresh->nbytes = version.size;
    fresh->device = made.data.device();
    version.holder = fresh;
  }
  StorageHandle* handle = holder_of(version);
  handle->data = std::move(made.data);
  if (!handle->device.is_cpu()) {
    const auto lock = lock_stream_uses(handle->device);
    handle->streams.made_by_replay(made.allocated_on, made.written_on);
  }
  if (handle->version) { // else of no storage of the program
    tell_owner(handle->data, handle);
  }
  if (handle->storage != nullptr) {
    set_address(*handle->storage, handle->data.get());
  }
}

bool StoragePortImpl::move(
    c10::remat::StorageVersion& version,
    const void* block,
    const std::vector<c10::remat::AddressRange>& avoided,
    c10::remat::Placement placement) noexcept {
  return copy_elsewhere(
      version, [&](StorageHandle& handle, c10::remat::DeviceMemory& memory) {
        void* const address =
            memory.copy_to_free_block(block, avoided, placement);
        if (address != nullptr) {
          set_copied(handle, address);
        }
        return address != nullptr;
      });
}

bool StoragePortImpl::slide(
    c10::remat::StorageVersion& version,
    const void* block) noexcept {
  return copy_elsewhere(
      version, [&](StorageHandle& handle, c10::remat::DeviceMemory& memory) {
        void* address = nullptr;
        const bool copied = memory.slide_down(block, address);
        if (address != handle.data.get()) {
          handle.data.release_context(); // it is the same block
          set_copied(handle, address);
        }
        return copied;
      });
}

void StoragePortImpl::set_version(void* holder, VersionId id) noexcept {
  auto* handle = static_cast<StorageHandle*>(holder);
  const bool is_new = !handle->version;
  handle->version = id;
  if (is_new) {
    tell_owner(handle->data, handle);
  }
}

VersionId StoragePortImpl::version_of(void* holder) const noexcept {
  return static_cast<const StorageHandle*>(holder)->version;
}

void StoragePortImpl::disown(c10::remat::StorageVersion& version) noexcept {
  if (StorageHandle* handle = holder_of(version)) {
    handle->storage = nullptr;
  }
}

void StoragePortImpl::forget(c10::remat::StorageVersion& version) noexcept {
  if (StorageHandle* handle = holder_of(version)) {
    prepare_to_free(*handle);
    const c10::remat::NoInterpreterGuard guard;
    delete handle;
  }
  version.holder = nullptr;
}

} // namespace at::remat
