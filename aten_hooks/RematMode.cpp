#include "RematMode.h"

#include "capture/EvictedAddress.h"
#include "capture/MemoryPressure.h"
#include "capture/RematKey.h"
#include "capture/TensorKinds.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/remat/CpuMemory.h>
#include <c10/remat/Errors.h>
#include <c10/remat/ThreadDefault.h>
#include <c10/util/ParallelGuard.h>

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace at::remat {

namespace {

using c10::remat::Bytes;
using c10::remat::Config;

bool fault_in(c10::StorageImpl& storage) {
  StorageHandle* handle = handle_of(storage);
  if (handle == nullptr) {
    return false;
  }
  RematMode& mode = RematMode::get();
  // The loops of a kernel run on other threads, too.
  if (op_depth() > 0 || c10::ParallelGuard::is_enabled()) {
    if (handle->data.get() == nullptr) {
      mode.make_resident(storage);
    }
  } else if (mode.active_on(handle->device) != nullptr) {
    handle->engine->count_fault();
    mode.escape(storage);
    if (const auto stream = current_stream(handle->device)) {
      // Whoever uses the address does so in the order of the current stream.
      const auto lock = lock_stream_uses(handle->device);
      handle->streams.used_by_program(*stream, /*writes=*/true);
    }
  }
  return true;
}

void unmanage_storage(c10::StorageImpl& storage) {
  RematMode::get().unmanage(storage);
}

void storage_died(void* context) {
  auto* handle = static_cast<StorageHandle*>(context);
  handle->engine->storage_died(handle->version);
}

void before_fork() {
  RematMode::get().for_each_device([](ManagedDevice& device) {
    device.engine().lock_for_fork();
    device.planner().lock_for_fork();
  });
}

void after_fork_in_parent() {
  RematMode::get().for_each_device([](ManagedDevice& device) {
    device.planner().unlock_in_parent();
    device.engine().unlock_in_parent();
  });
}

void after_fork_in_child() {
  // CUDA does not work in a forked child, whose limits therefore do not matter.
  c10::remat::set_cpu_memory_limit(0, nullptr);
  RematMode::get().for_each_device([](ManagedDevice& device) {
    device.planner().reset_in_child();
    device.engine().reset_in_child();
  });
}

// No thread of ours runs while what is static is destroyed.
void at_exit() {
  RematMode::get().for_each_device(
      [](ManagedDevice& device) { device.planner().stop(); });
}

} // namespace

RematMode& RematMode::get() {
  // Never destroyed: storages may outlive static destruction.
  static auto* mode = new RematMode;
  return *mode;
}

RematMode::RematMode() {
  c10::remat::install_storage_hooks(
      {&fault_in, &unmanage_storage, &storage_died});
}

size_t RematMode::slot_of(c10::Device device) {
  if (device.is_cpu()) {
    return 0;
  }
  const auto slot = static_cast<size_t>(device.index()) + 1;
  return device.is_cuda() && device.has_index() && slot < kMostDevices
      ? slot
      : kMostDevices;
}

ManagedDevice* RematMode::device_if_any(c10::Device device) const {
  const size_t slot = slot_of(device);
  return slot < kMostDevices ? devices_[slot].load(std::memory_order_acquire)
                             : nullptr;
}

ManagedDevice& RematMode::device(c10::Device device) const {
  ManagedDevice* managed = device_if_any(device);
  if (managed == nullptr) {
    throw c10::remat::UsageError(
        "remat is off on " + device.str() +
        "; call torch.cuda.remat.enable() first");
  }
  return *managed;
}

void RematMode::enable(
    c10::Device device,
    const Config& config,
    size_t smallest_managed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t slot = slot_of(device);
  if (slot == kMostDevices) {
    throw c10::remat::UsageError("remat cannot manage " + device.str());
  }
  ManagedDevice* managed = devices_[slot].load();
  if (managed == nullptr) {
    static const int at_fork = pthread_atfork(
        &before_fork, &after_fork_in_parent, &after_fork_in_child);
    static const int at_exit_too = std::atexit(&at_exit);
    (void)at_fork;
    (void)at_exit_too;
    // Never destroyed, as this is not.
    managed = new ManagedDevice(device, config, storage_port_, replayer_);
    devices_[slot].store(managed, std::memory_order_release);
  } else {
    managed->engine().configure(config);
  }
  smallest_managed_ = smallest_managed;
  explain_faults();
  c10::DispatchKeySet key(kRematKey);
  c10::remat::set_thread_default_included(key.raw_repr());
  c10::remat::include_in_all_threads(key.raw_repr());
  c10::impl::tls_set_dispatch_key_included(kRematKey, true);
  if (!managed->is_active()) {
    managed->set_active(true);
    ++active_devices_;
  }
  managed->limit(config.budget);
  managed->planner().start(
      managed->engine().plan_exchange(), config.planner_share);
}

void RematMode::disable(c10::Device device, bool for_now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ManagedDevice* managed = active_on(device);
  if (managed == nullptr) {
    return;
  }
  Engine& engine = managed->engine();
  if (!for_now) {
    managed->planner().stop();
  }
  // Nothing is evicted from here on; and once all is resident, threads whose
  // ops are no longer captured read what they should.
  managed->unlimit();
  Config config = engine.config();
  config.budget = Config::kUnlimited;
  config.chaos = false;
  engine.configure(config);
  engine.retire();
  managed->set_active(false);
  if (--active_devices_ == 0) {
    c10::remat::set_thread_default_included(0);
    c10::impl::tls_set_dispatch_key_included(kRematKey, false);
  }
  // Ops under way on other threads have recorded until now.
  for (int waits = 0; engine.ops_in_flight() > 0 && waits < 5000; ++waits) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  engine.retire();
}

void RematMode::expect_far_reaching_ops() {
  if (replays_exclude_each_other_.load(std::memory_order_acquire)) {
    return;
  }
  c10::remat::ReplayMutex::exclude_all();
  for_each_device(
      [](ManagedDevice& device) { device.engine().wait_for_replays(); });
  replays_exclude_each_other_.store(true, std::memory_order_release);
}

void RematMode::set_budget(c10::Device device, Bytes budget) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ManagedDevice* managed = active_on(device);
  if (managed == nullptr) {
    throw c10::remat::UsageError(
        "remat is off on " + device.str() +
        "; call torch.cuda.remat.enable() first");
  }
  managed->engine().set_budget(budget);
  managed->limit(budget);
  managed->relieve_now();
}

StorageHandle* RematMode::managed(c10::StorageImpl& storage) {
  if (StorageHandle* handle = handle_of(storage)) {
    return handle;
  }
  const at::DataPtr& data_ptr = storage._mutable_data_ptr_no_checks();
  ManagedDevice* device = active_on(data_ptr.device());
  if (device == nullptr || data_ptr.get() == nullptr ||
      !is_from_allocator(storage)) {
    return nullptr;
  }
  return manage_leaf(storage, device->engine());
}

void RematMode::make_resident(c10::StorageImpl& storage) {
  if (pin(storage)) {
    unpin(storage);
  }
}

bool RematMode::pin(c10::StorageImpl& storage) {
  StorageHandle* handle = handle_of(storage);
  if (handle == nullptr) {
    return false;
  }
  with_memory_errors(*handle->engine, handle->device, [&] {
    handle->engine->ensure_resident(handle->version);
  });
  return true;
}

void RematMode::unpin(c10::StorageImpl& storage) {
  StorageHandle* handle = handle_of(storage);
  if (handle != nullptr) {
    handle->engine->unpin(handle->version);
  }
}

void RematMode::pin_by_user(c10::StorageImpl& storage) {
  if (StorageHandle* handle = managed(storage)) {
    const bool resident = pin(storage);
    TORCH_INTERNAL_ASSERT(resident);
    handle->engine->pin_by_user(handle->version);
    unpin(storage);
  }
}

void RematMode::unpin_by_user(c10::StorageImpl& storage) {
  StorageHandle* handle = handle_of(storage);
  if (handle != nullptr) {
    handle->engine->unpin_by_user(handle->version);
  }
}

void RematMode::escape(c10::StorageImpl& storage) {
  if (StorageHandle* handle = managed(storage)) {
    with_memory_errors(*handle->engine, handle->device, [&] {
      handle->engine->escape(handle->version, /*for_good=*/true);
    });
  }
}

void RematMode::add_alias(c10::StorageImpl& storage) {
  escape(storage);
  if (StorageHandle* handle = handle_of(storage)) {
    ++handle->aliases;
  }
}

void RematMode::drop_alias(c10::StorageImpl& storage) {
  StorageHandle* handle = handle_of(storage);
  if (handle != nullptr && handle->aliases > 0) {
    escape(storage); // the last writes through the alias
    --handle->aliases;
  }
}

void RematMode::unmanage(c10::StorageImpl& storage) {
  StorageHandle* handle = handle_of(storage);
  if (handle == nullptr) {
    return;
  }
  Engine& engine = *handle->engine;
  const VersionId version = engine.escape(handle->version, /*for_good=*/true);
  detach(*handle);
  engine.storage_died(version);
}

} // namespace at::remat
