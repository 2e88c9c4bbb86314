#pragma once

#include "../EngineState.h"
#include "../Errors.h"
#include "ReplayPlan.h"

#include <mutex>
#include <vector>

namespace c10::remat {

// Makes evicted versions resident by running replay plans. One thread at a
// time: a plan owns the intermediates that it is working on.
class Rematerializer {
 public:
  explicit Rematerializer(EngineState& state) : state_(state) {}

  // Makes `targets` resident; the caller has pinned them. `lock` is held on
  // entry and on return, and dropped while ops run. Throws what an op throws,
  // with all pins and reservations of its own undone.
  void bring_back(
      const std::vector<VersionId>& targets,
      std::unique_lock<std::mutex>& lock,
      Garbage& garbage);

 private:
  struct Frame {
    ReplayPlan plan;
    size_t next = 0;
    // Per op and input: what its `next_use` is when the op has run.
    std::vector<std::vector<uint64_t>> uses_after;
  };

  uint64_t time_of(const std::vector<Frame>& frames) const;
  Frame reserve(ReplayPlan plan, uint64_t places_outside);
  void unreserve(const Frame& frame, size_t place, Garbage& garbage);
  ReplayRequest request_for(OpId op);
  void finish(const ReplayRequest& request);
  // Runs one op of a frame, whose inputs are resident.
  void run(OpId op, std::unique_lock<std::mutex>& lock);

  EngineState& state_;
};

} // namespace c10::remat
