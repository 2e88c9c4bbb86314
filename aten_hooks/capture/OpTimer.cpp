#include "OpTimer.h"

#include "StreamUse.h"

#include <c10/remat/DeviceMemory.h>

#include <algorithm>

namespace at::remat {

std::unique_ptr<OpTimer::Sample> OpTimer::start(uint64_t signature) {
  std::unique_ptr<Sample> sample;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pending_.size() >= kMostPending) {
      return nullptr;
    }
    if (!idle_.empty()) {
      sample = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (sample == nullptr) {
    sample = std::make_unique<Sample>(device_.type(), signature);
  }
  sample->signature = signature;
  sample->driver_calls = driver_calls();
  sample->start.record(*current_stream(device_));
  return sample;
}

bool OpTimer::stop(std::unique_ptr<Sample> sample) {
  if (sample->driver_calls != driver_calls()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(sample));
    return false;
  }
  sample->end.record(*current_stream(device_));
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.push_back(std::move(sample));
  return true;
}

int64_t OpTimer::driver_calls() const {
  const auto* memory = c10::remat::cuda_memory(device_.index());
  return memory != nullptr ? memory->driver_calls() : 0;
}

void OpTimer::collect(c10::remat::Engine& engine) {
  // An event is asked once in a while: that takes as long as a small launch.
  thread_local uint32_t ops = 0;
  if (++ops % kOpsPerLook != 0) {
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return; // another thread is at it
  }
  while (!pending_.empty() && pending_.front()->end.query()) {
    std::unique_ptr<Sample> sample = std::move(pending_.front());
    pending_.pop_front();
    const double ms = sample->start.elapsedTime(sample->end);
    engine.note_cost(
        sample->signature,
        std::max<int64_t>(static_cast<int64_t>(ms * 1e6), 1));
    idle_.push_back(std::move(sample));
  }
}

} // namespace at::remat
