#include "RematMode.h"

#include "capture/EvictedAddress.h"
#include "capture/MemoryPressure.h"
#include "capture/RematKey.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/remat/CpuMemory.h>
#include <c10/remat/Errors.h>
#include <c10/remat/ThreadDefault.h>
#include <c10/util/ParallelGuard.h>

#include <pthread.h>

#include <chrono>
#include <limits>
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
  } else if (mode.active() != nullptr) {
    mode.engine().count_fault();
    mode.escape(storage);
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
  RematMode::get().engine().lock_for_fork();
}

void after_fork_in_parent() {
  RematMode::get().engine().unlock_in_parent();
}

void after_fork_in_child() {
  c10::remat::set_cpu_memory_limit(0, nullptr);
  RematMode::get().engine().reset_in_child();
}

} // namespace

Bytes CpuDevicePort::usage() const {
  return static_cast<Bytes>(c10::remat::cpu_memory_usage().live);
}

RematMode& RematMode::get() {
  // Never destroyed: storages may outlive static destruction.
  static auto* mode = new RematMode;
  return *mode;
}

RematMode::RematMode() {
  c10::remat::install_storage_hooks(
      {&fault_in, &unmanage_storage, &storage_died});
}

Engine& RematMode::engine() const {
  if (engine_ == nullptr) {
    throw c10::remat::UsageError(
        "remat is off; call torch.cuda.remat.enable() first");
  }
  return *engine_;
}

void RematMode::limit_cpu(Bytes budget) {
  if (budget == Config::kUnlimited) {
    c10::remat::set_cpu_memory_limit(0, nullptr);
    return;
  }
  constexpr Bytes kMost = std::numeric_limits<int64_t>::max() - 1;
  c10::remat::set_cpu_memory_limit(
      static_cast<int64_t>(std::min(budget, kMost)), &relieve_cpu_pressure);
}

void RematMode::enable(const Config& config, size_t smallest_managed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (engine_ == nullptr) {
    engine_ =
        std::make_unique<Engine>(config, storage_port_, cpu_port_, replayer_);
    pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
  } else {
    engine_->configure(config);
  }
  smallest_managed_ = smallest_managed;
  explain_faults();
  c10::DispatchKeySet key(kRematKey);
  c10::remat::set_thread_default_included(key.raw_repr());
  c10::remat::include_in_all_threads(key.raw_repr());
  c10::impl::tls_set_dispatch_key_included(kRematKey, true);
  active_.store(engine_.get(), std::memory_order_release);
  limit_cpu(config.budget);
}

void RematMode::disable() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Engine* engine = active();
  if (engine == nullptr) {
    return;
  }
  // Nothing is evicted from here on; and once all is resident, threads whose
  // ops are no longer captured read what they should.
  limit_cpu(Config::kUnlimited);
  Config config = engine->config();
  config.budget = Config::kUnlimited;
  config.chaos = false;
  engine->configure(config);
  engine->retire();
  active_.store(nullptr, std::memory_order_release);
  c10::remat::set_thread_default_included(0);
  c10::impl::tls_set_dispatch_key_included(kRematKey, false);
  // Ops under way on other threads have recorded until now.
  for (int waits = 0; engine->ops_in_flight() > 0 && waits < 5000; ++waits) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  engine->retire();
}

void RematMode::set_budget(Bytes budget) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (active() == nullptr) {
    throw c10::remat::UsageError(
        "remat is off; call torch.cuda.remat.enable() first");
  }
  engine_->set_budget(budget);
  limit_cpu(budget);
  const int64_t shortage = c10::remat::cpu_memory_shortage();
  if (shortage > 0) {
    engine_->relieve_pressure(static_cast<Bytes>(shortage));
  }
}

StorageHandle* RematMode::managed(c10::StorageImpl& storage) {
  if (StorageHandle* handle = handle_of(storage)) {
    return handle;
  }
  Engine* engine = active();
  const at::DataPtr& data_ptr = storage._mutable_data_ptr_no_checks();
  if (engine == nullptr || !data_ptr.device().is_cpu() ||
      data_ptr.get() == nullptr ||
      data_ptr.get_deleter() != c10::GetCPUAllocator()->raw_deleter()) {
    return nullptr;
  }
  return manage_leaf(storage, *engine);
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
  with_memory_errors(*handle->engine, [&] {
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
    with_memory_errors(*handle->engine, [&] {
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
