#pragma once

#include "OpTimer.h"

#include <c10/remat/Ids.h>

#include <chrono>
#include <cstdint>
#include <memory>

namespace at::remat {

class ManagedDevice;

// Measures one op, unless this thread has measured those of its signature often
// enough: by the clock on the CPU, where an op is done when it returns, and by
// events on a device with streams.
class OpStopwatch {
 public:
  void start(ManagedDevice& device, uint64_t signature);

  // What the op took. 0: not measured, or known only later.
  c10::remat::CostNs stop();
  bool is_known_later() const {
    return is_timed_ && !is_on_cpu_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_timed_ = false;
  bool is_on_cpu_ = false;
  ManagedDevice* device_ = nullptr;
  uint64_t signature_ = 0;
  Clock::time_point start_; // on the CPU
  int64_t relief_before_ = 0;
  std::unique_ptr<OpTimer::Sample> sample_; // elsewhere
};

} // namespace at::remat
