#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/remat/Engine.h>

#include <deque>
#include <mutex>
#include <vector>

namespace at::remat {

// Measures what ops cost on a device with streams: a pair of events around a
// few ops of each signature, read when a later op comes by and never waited
// for.
class OpTimer {
 public:
  struct Sample {
    Sample(c10::DeviceType type, uint64_t signature)
        : start(type, c10::EventFlag::BACKEND_DEFAULT),
          end(type, c10::EventFlag::BACKEND_DEFAULT),
          signature(signature) {}
    c10::Event start;
    c10::Event end;
    uint64_t signature;
    int64_t driver_calls = 0; // before
  };

  explicit OpTimer(c10::Device device) : device_(device) {}

  // Records the start on the current stream.
  std::unique_ptr<Sample> start(uint64_t signature);
  // Records the end. False: the sample is of no use, since the driver was asked
  // for memory meanwhile, which the device had to wait for.
  bool stop(std::unique_ptr<Sample> sample);
  // Tells `engine` of the samples that are complete. Not while a stream is
  // being captured: asking an event ends the capture.
  void collect(c10::remat::Engine& engine);

 private:
  static constexpr size_t kMostPending = 64;
  static constexpr uint32_t kOpsPerLook = 16;

  int64_t driver_calls() const;

  const c10::Device device_;
  std::mutex mutex_;
  std::deque<std::unique_ptr<Sample>> pending_; // in the order of their ends
  std::vector<std::unique_ptr<Sample>> idle_; // to be used again
};

} // namespace at::remat
