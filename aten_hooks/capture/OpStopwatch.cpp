#include "OpStopwatch.h"

#include "../ManagedDevice.h"
#include "MemoryPressure.h"

#include <c10/remat/CostTable.h>

#include <algorithm>

namespace at::remat {

namespace {

// Which signatures this thread has measured as often as the engine's CostTable
// wants to know: looking at the clock is a good part of what capture costs.
// Some are forgotten, and measured in vain.
class TimedOps {
 public:
  bool wants(uint64_t signature) {
    const Entry& entry = entry_of(signature);
    return entry.signature != signature ||
        entry.samples < c10::remat::CostTable::kSamples;
  }
  void count(uint64_t signature) {
    Entry& entry = entry_of(signature);
    if (entry.signature != signature) {
      entry = {signature, 0};
    }
    ++entry.samples;
  }

 private:
  struct Entry {
    uint64_t signature;
    uint32_t samples;
  };
  static constexpr int kBits = 9;

  Entry& entry_of(uint64_t signature) {
    return entries_[(signature * 0x9e3779b97f4a7c15) >> (64 - kBits)];
  }

  Entry entries_[1 << kBits];
};

TimedOps& timed_ops() {
  thread_local TimedOps timed{};
  return timed;
}

} // namespace

void OpStopwatch::start(ManagedDevice& device, uint64_t signature) {
  device_ = &device;
  signature_ = signature;
  is_on_cpu_ = device.device().is_cpu();
  is_timed_ = timed_ops().wants(signature);
  if (is_on_cpu_) {
    if (is_timed_) {
      relief_before_ = relief_ns_of_thread();
      start_ = Clock::now();
    }
  } else if (!device.is_capturing()) {
    device.timer().collect(device.engine());
    if (is_timed_) {
      sample_ = device.timer().start(signature);
    }
  }
}

c10::remat::CostNs OpStopwatch::stop() {
  if (sample_ != nullptr) {
    if (device_->timer().stop(std::move(sample_))) {
      timed_ops().count(signature_);
    }
    return 0;
  }
  if (!is_timed_ || !is_on_cpu_) {
    return 0;
  }
  const int64_t elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(
                              Clock::now() - start_)
                              .count();
  timed_ops().count(signature_);
  return std::max<int64_t>(
      elapsed - (relief_ns_of_thread() - relief_before_), 1);
}

} // namespace at::remat
