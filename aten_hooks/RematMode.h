#pragma once

#include "ManagedDevice.h"
#include "capture/StorageHandle.h"
#include "replay/DispatchReplayer.h"

#include <c10/core/Device.h>
#include <c10/remat/Engine.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace at::remat {

// Keeps bytes resident for its lifetime, also those that their storage no
// longer holds when it ends.
class ResidencyPin {
 public:
  // Throws what a replay throws.
  explicit ResidencyPin(StorageHandle& handle);
  ~ResidencyPin() {
    engine_.unpin(version_);
  }
  ResidencyPin(const ResidencyPin&) = delete;
  ResidencyPin& operator=(const ResidencyPin&) = delete;

  VersionId version() const {
    return version_;
  }

 private:
  Engine& engine_; // engines are never destroyed
  VersionId version_;
};

// The managed devices, and how they are reached from tensors, threads and
// allocators. One for the process; thread-safe.
class REMAT_API RematMode {
 public:
  static RematMode& get();

  // Smaller than this a storage costs more to keep track of than to keep.
  static constexpr size_t kSmallestManaged = 256;

  // Throws remat::UsageError for a bad config, or a device that cannot be
  // managed; this, `disable` and `set_budget` also if they are called by an op
  // that is being replayed. Covers all threads; see Note [Keys of all threads].
  void enable(
      c10::Device device,
      const c10::remat::Config& config,
      size_t smallest_managed = kSmallestManaged);
  // Makes everything on `device` resident, whatever the budget, and forgets
  // all history. Throws what a replay throws, and is still enabled then,
  // without a budget.
  // With `for_now` it is likely to be enabled again: a search for a plan goes
  // on.
  void disable(c10::Device device, bool for_now = false);

  // Is any device managed now?
  bool is_active() const {
    return active_devices_.load(std::memory_order_acquire) > 0;
  }
  // Null if the ops of `device` are not captured now.
  ManagedDevice* active_on(c10::Device device) const {
    ManagedDevice* managed = device_if_any(device);
    return managed != nullptr && managed->is_active() ? managed : nullptr;
  }
  // Null if it has never been enabled.
  ManagedDevice* device_if_any(c10::Device device) const;
  // Throws UsageError then.
  ManagedDevice& device(c10::Device device) const;

  // An op that may reach storages of any device is about to be recorded; see
  // Note [Replays that reach other devices].
  void expect_far_reaching_ops();

  void set_budget(c10::Device device, c10::remat::Bytes budget);

  // For fork: nothing of remat is half-done in between.
  void lock_for_fork();
  void unlock_in_parent();
  void reset_in_child();

  // Calls `function(ManagedDevice&)` for each that was ever enabled.
  template <class Function>
  void for_each_device(Function&& function) const {
    for (const auto& slot : devices_) {
      if (ManagedDevice* managed = slot.load(std::memory_order_acquire)) {
        function(*managed);
      }
    }
  }

  // The outputs of recorded ops are managed from this many bytes on.
  size_t smallest_managed() const {
    return smallest_managed_.load(std::memory_order_relaxed);
  }

  // The bytes of a tensor or storage outside any op. All accept unmanaged
  // storages, for which nothing is to do.
  void make_resident(c10::StorageImpl& storage);
  // Makes it resident and keeps it so for the result's lifetime; null if it is
  // unmanaged.
  std::unique_ptr<ResidencyPin> pin(c10::StorageImpl& storage);
  // The same until `unpin_by_user`, counted as the program's wish.
  void pin_by_user(c10::StorageImpl& storage);
  void unpin_by_user(c10::StorageImpl& storage);
  // Its address is handed out: it may be written now, and is never evicted
  // again.
  void escape(c10::StorageImpl& storage);
  // Other code may write to it at any time from now until `drop_alias`.
  void add_alias(c10::StorageImpl& storage);
  void drop_alias(c10::StorageImpl& storage);
  // Gives it its own DataPtr back.
  void unmanage(c10::StorageImpl& storage);

 private:
  // The CPU, and after it CUDA's devices.
  static constexpr size_t kMostDevices = 129;

  RematMode();
  static size_t slot_of(c10::Device device);
  // Puts it under management if it is not. Null if it cannot be: remat is off,
  // or the memory is not the allocator's.
  StorageHandle* managed(c10::StorageImpl& storage);

  // Enabling and disabling. Recursive for fork: an op that disabling replays
  // may start a process.
  std::recursive_mutex mutex_;
  std::atomic<int> active_devices_{0};
  std::atomic<size_t> smallest_managed_{0};
  std::atomic<bool> replays_exclude_each_other_{false};
  StoragePortImpl storage_port_;
  DispatchReplayer replayer_;
  // Made when first enabled and kept: storages stay managed, as leaves, after
  // `disable`, and report to their engine when they die.
  std::array<std::atomic<ManagedDevice*>, kMostDevices> devices_{};
};

} // namespace at::remat
