#pragma once

#include "capture/StorageHandle.h"
#include "replay/DispatchReplayer.h"

#include <c10/core/Device.h>
#include <c10/remat/Engine.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace at::remat {

// How full the CPU is: bytes live from c10's default CPU allocator.
class CpuDevicePort final : public c10::remat::DevicePort {
 public:
  c10::remat::Bytes usage() const override;
};

// The engine of one device, its ports, and how it is reached from tensors,
// threads and the allocator. One for the process; thread-safe.
class REMAT_API RematMode {
 public:
  static RematMode& get();

  // Smaller than this a storage costs more to keep track of than to keep.
  static constexpr size_t kSmallestManaged = 256;

  // Throws remat::UsageError for a bad config. Covers all threads; see
  // Note [Keys of all threads].
  void enable(
      const c10::remat::Config& config,
      size_t smallest_managed = kSmallestManaged);
  // Makes everything resident, whatever the budget, and forgets all history.
  // Throws what a replay throws, and is still enabled then, without a budget.
  void disable();

  // The engine that captures now; null while off.
  Engine* active() const {
    return active_.load(std::memory_order_acquire);
  }
  // Throws UsageError if remat has never been enabled.
  Engine& engine() const;
  // Null then.
  Engine* engine_if_any() const {
    return engine_.get();
  }

  void set_budget(c10::remat::Bytes budget);

  // The outputs of recorded ops are managed from this many bytes on.
  size_t smallest_managed() const {
    return smallest_managed_.load(std::memory_order_relaxed);
  }

  // The bytes of a tensor or storage outside any op. All accept unmanaged
  // storages, for which nothing is to do.
  void make_resident(c10::StorageImpl& storage);
  // Makes it resident and keeps it so until `unpin`; false if unmanaged.
  bool pin(c10::StorageImpl& storage);
  void unpin(c10::StorageImpl& storage);
  // As pin, but counted as the program's wish and accepted for leaves.
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
  RematMode();
  static void limit_cpu(c10::remat::Bytes budget);
  // Puts it under management if it is not. Null if it cannot be: remat is off,
  // or the memory is not the allocator's.
  StorageHandle* managed(c10::StorageImpl& storage);

  mutable std::mutex mutex_; // enabling and disabling
  std::atomic<Engine*> active_{nullptr};
  std::atomic<size_t> smallest_managed_{0};
  StoragePortImpl storage_port_;
  CpuDevicePort cpu_port_;
  DispatchReplayer replayer_;
  // Made when first enabled and kept: storages stay managed, as leaves, after
  // `disable`, and report to it when they die.
  std::unique_ptr<Engine> engine_;
};

} // namespace at::remat
