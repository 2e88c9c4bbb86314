#include "RematMode.h"

#include "capture/EvictedAddress.h"
#include "capture/MemoryPressure.h"
#include "capture/OpCall.h"
#include "capture/RematKey.h"
#include "capture/RunningOp.h"
#include "capture/TensorKinds.h"
#include "replay/ReplayTimer.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/remat/BlockingSection.h>
#include <c10/remat/CpuMemory.h>
#include <c10/remat/Errors.h>
#include <c10/remat/ThreadDefault.h>
#include <c10/util/ParallelGuard.h>

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <new>
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
  if (RunningOp::current() != nullptr || c10::ParallelGuard::is_enabled()) {
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

// An op that is replayed may be one that a `disable` under way waits for.
void refuse_in_replay(const char* function) {
  if (is_replaying()) {
    throw c10::remat::UsageError(
        std::string("torch.cuda.remat.") + function +
        "() was called by an op that is being replayed");
  }
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
  refuse_in_replay("enable");
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const size_t slot = slot_of(device);
  if (slot == kMostDevices) {
    throw c10::remat::UsageError("remat cannot manage " + device.str());
  }
  ManagedDevice* managed = devices_[slot].load();
  if (managed == nullptr) {
    static const int at_fork = pthread_atfork(
        [] { get().lock_for_fork(); },
        [] { get().unlock_in_parent(); },
        [] { get().reset_in_child(); });
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
  refuse_in_replay("disable");
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
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
  for (int waits = 0;
       engine.ops_in_flight() > own_ops_on(engine) && waits < 5000;
       ++waits) {
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
  refuse_in_replay("set_budget");
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
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

void RematMode::lock_for_fork() {
  std::unique_lock mode_lock(mutex_, std::defer_lock);
  c10::remat::lock_in_blocking_section(mode_lock);
  mode_lock.release();
  for_each_device(
      [](ManagedDevice& device) { device.engine().lock_replays_for_fork(); });
  manage_leaf_mutex().lock();
  OpTraits::mutex().lock();
  for_each_device([](ManagedDevice& device) {
    device.engine().lock_for_fork();
    device.planner().lock_for_fork();
  });
}

void RematMode::unlock_in_parent() {
  for_each_device([](ManagedDevice& device) {
    device.planner().unlock_in_parent();
    device.engine().unlock_in_parent();
  });
  OpTraits::mutex().unlock();
  manage_leaf_mutex().unlock();
  mutex_.unlock();
}

void RematMode::reset_in_child() {
  // CUDA does not work in a forked child, whose limits therefore do not matter.
  c10::remat::reset_cpu_memory_limit_in_child();
  for_each_device([](ManagedDevice& device) {
    device.planner().reset_in_child();
    device.engine().reset_in_child(own_ops_on(device.engine()));
  });
  OpTraits::mutex().unlock();
  manage_leaf_mutex().unlock();
  new (&mutex_) std::recursive_mutex; // the old one is the parent thread's
}

ResidencyPin::ResidencyPin(StorageHandle& handle) : engine_(*handle.engine) {
  with_memory_errors(engine_, handle.device, [&] {
    version_ = engine_.ensure_held_resident(&handle);
  });
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
  (void)pin(storage);
}

std::unique_ptr<ResidencyPin> RematMode::pin(c10::StorageImpl& storage) {
  StorageHandle* handle = handle_of(storage);
  return handle == nullptr ? nullptr : std::make_unique<ResidencyPin>(*handle);
}

void RematMode::pin_by_user(c10::StorageImpl& storage) {
  if (StorageHandle* handle = managed(storage)) {
    const ResidencyPin pin(*handle);
    handle->engine->pin_by_user(pin.version());
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
      handle->engine->escape(handle, /*for_good=*/true);
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
  const VersionId version = engine.escape(handle, /*for_good=*/true);
  detach(*handle);
  engine.storage_died(version);
}

} // namespace at::remat
