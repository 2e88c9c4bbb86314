#pragma once

#include "capture/OpTimer.h"
#include "capture/StorageHandle.h"

#include <c10/core/Device.h>
#include <c10/remat/DeviceMemory.h>
#include <c10/remat/Engine.h>
#include <c10/remat/sim/BackgroundPlanner.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace at::remat {

// A device with an engine: how full it is, what its allocator asks for, and who
// makes plans for it.
class ManagedDevice final : public c10::remat::DevicePort,
                            public c10::remat::PressureHandler {
 public:
  // The ports must outlive it. Throws UsageError for an unknown policy, and
  // for a CUDA device whose allocator cannot be given a limit.
  ManagedDevice(
      c10::Device device,
      const c10::remat::Config& config,
      c10::remat::StoragePort& storage,
      c10::remat::ReplayPort& replayer);

  c10::Device device() const {
    return device_;
  }
  Engine& engine() {
    return engine_;
  }
  c10::remat::BackgroundPlanner& planner() {
    return planner_;
  }
  OpTimer& timer() {
    return timer_;
  }

  // Its ops are captured.
  bool is_active() const {
    return is_active_.load(std::memory_order_acquire);
  }
  void set_active(bool active) {
    is_active_.store(active, std::memory_order_release);
  }

  // From now on the allocator keeps to `budget`, and asks for relief.
  void limit(c10::remat::Bytes budget);
  // It does not any more.
  void unlimit();
  // Evicts what is above the budget now.
  void relieve_now();

  // Some stream of it is being captured into a graph.
  bool is_capturing() const;
  // The current one is.
  bool captures_graph() const;
  c10::remat::Bytes peak() const;
  void reset_peak();

  c10::remat::Bytes usage() const override;
  std::vector<c10::remat::SegmentView> segments(
      const c10::remat::MemoryRequest& request) const override;
  void close_holes() noexcept override;
  c10::remat::CostNs copy_cost(
      c10::remat::Bytes size,
      c10::remat::Bytes distance) const override;
  bool relieve(const c10::remat::MemoryRequest& request) noexcept override;
  std::string explain_out_of_memory(c10::remat::Bytes size) override;
  bool uses_windows() const override {
    return engine_.config().windows;
  }

 private:
  const c10::Device device_;
  c10::remat::DeviceMemory* const cuda_; // null: the CPU
  OpTimer timer_;
  std::atomic<bool> is_active_{false};
  Engine engine_; // it is told of this as its DevicePort
  c10::remat::BackgroundPlanner planner_; // last: ends before the engine
};

} // namespace at::remat
