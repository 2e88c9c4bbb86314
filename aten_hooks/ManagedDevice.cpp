#include "ManagedDevice.h"

#include "capture/MemoryPressure.h"

#include <c10/remat/CpuMemory.h>

#include <algorithm>
#include <limits>

namespace at::remat {

namespace {

using c10::remat::Bytes;
using c10::remat::Config;

c10::remat::DeviceMemory* cuda_memory_of(c10::Device device) {
  if (device.is_cpu()) {
    return nullptr;
  }
  auto* memory = c10::remat::cuda_memory(device.index());
  if (memory == nullptr) {
    throw c10::remat::UsageError(
        device.str() +
        " cannot be given a budget: its memory is not that of PyTorch's own "
        "caching allocator (see PYTORCH_CUDA_ALLOC_CONF and "
        "torch.cuda.memory.change_current_allocator)");
  }
  return memory;
}

} // namespace

ManagedDevice::ManagedDevice(
    c10::Device device,
    const Config& config,
    c10::remat::StoragePort& storage,
    c10::remat::ReplayPort& replayer)
    : device_(device),
      cuda_(cuda_memory_of(device)),
      timer_(device),
      engine_(config, storage, *this, replayer) {}

void ManagedDevice::unlimit() {
  if (cuda_ != nullptr) {
    cuda_->set_limit(Config::kUnlimited, nullptr);
  } else {
    c10::remat::set_cpu_memory_limit(0, nullptr);
  }
}

void ManagedDevice::limit(Bytes budget) {
  if (cuda_ != nullptr) {
    // Also without a budget: the device's own memory is a limit.
    cuda_->set_limit(budget, this);
    return;
  }
  if (budget == Config::kUnlimited) {
    unlimit();
    return;
  }
  constexpr Bytes kMost = std::numeric_limits<int64_t>::max() - 1;
  c10::remat::set_cpu_memory_limit(
      static_cast<int64_t>(std::min(budget, kMost)), &relieve_cpu_pressure);
}

void ManagedDevice::relieve_now() {
  const Bytes budget = engine_.config().budget;
  if (cuda_ == nullptr) {
    const int64_t shortage = c10::remat::cpu_memory_shortage();
    if (shortage > 0) {
      engine_.relieve_pressure(static_cast<Bytes>(shortage));
    }
    return;
  }
  if (usage() > budget) {
    cuda_->release_free_memory();
  }
  // What is evicted helps only where it leaves whole segments free.
  for (Bytes now = usage(); now > budget; now = usage()) {
    c10::remat::MemoryRequest request;
    request.shortage = now - budget;
    if (engine_.relieve_request(request) == 0) {
      break;
    }
    cuda_->release_free_memory();
  }
}

bool ManagedDevice::is_capturing() const {
  return cuda_ != nullptr && cuda_->is_capturing();
}

bool ManagedDevice::captures_graph() const {
  return cuda_ != nullptr && cuda_->captures_graph();
}

Bytes ManagedDevice::usage() const {
  return cuda_ != nullptr
      ? cuda_->usage()
      : static_cast<Bytes>(c10::remat::cpu_memory_usage().live);
}

std::vector<c10::remat::SegmentView> ManagedDevice::segments(
    const c10::remat::MemoryRequest& request) const {
  return cuda_ != nullptr ? cuda_->segments(request)
                          : std::vector<c10::remat::SegmentView>();
}

void ManagedDevice::close_holes() noexcept {
  if (cuda_ != nullptr) {
    cuda_->close_holes();
  }
}

c10::remat::CostNs ManagedDevice::copy_cost(Bytes size, Bytes distance) const {
  return cuda_ != nullptr ? cuda_->copy_cost(size, distance)
                          : DevicePort::copy_cost(size, distance);
}

Bytes ManagedDevice::peak() const {
  return cuda_ != nullptr
      ? cuda_->peak()
      : static_cast<Bytes>(c10::remat::cpu_memory_usage().peak);
}

void ManagedDevice::reset_peak() {
  if (cuda_ != nullptr) {
    cuda_->reset_peak();
  } else {
    c10::remat::reset_cpu_memory_peak();
  }
}

bool ManagedDevice::relieve(const c10::remat::MemoryRequest& request) noexcept {
  if (!is_active() || captures_graph()) {
    return false;
  }
  const ReliefTimer timer(engine_);
  int waits = 0;
  do {
    if (engine_.relieve_request(request) > 0) {
      return true;
    }
  } while (wait_for_other_ops(engine_, waits));
  return false;
}

std::string ManagedDevice::explain_out_of_memory(Bytes size) {
  engine_.count_out_of_memory();
  return explain_memory(device_, size, engine_.breakdown());
}

} // namespace at::remat
