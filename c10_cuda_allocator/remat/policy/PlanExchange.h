#pragma once

#include "../Export.h"
#include "../TraceEvent.h"
#include "Future.h"
#include "Tuning.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace c10::remat {

// An iteration that was repeated under pressure: how should it be run?
struct PlanRequest {
  uint64_t iteration = 0; // its fingerprint
  std::shared_ptr<const Future> future;
  std::vector<TraceEvent> program; // see ProgramLog
  Bytes budget = 0; // when asked
  Bytes room = 0; // for what is in the graph
};

struct PlanAnswer {
  uint64_t iteration = 0;
  Bytes budget = 0;
  bool is_found = false; // or nothing is known of what does well
  // Null: the online policy does better.
  std::shared_ptr<const Tuning> tuning;
  size_t candidates = 0; // that were simulated
};

// Between a policy that wants plans and whoever makes them, on another thread
// or not. Holds one request or one answer at a time.
//
// The policy's side never waits: `ask` and `take_answer` fail if the other side
// is in here at that moment, and are tried again an iteration later.
class REMAT_API PlanExchange {
 public:
  // --- the policy's side ---

  // Changes with each `open`, which knows of no earlier request; 0: nobody
  // makes plans.
  uint64_t session() const {
    return session_.load(std::memory_order_acquire);
  }
  // Takes over what `request` holds; an answer follows unless the session
  // ends. False: not now, there is an earlier one.
  bool ask(PlanRequest& request);
  std::optional<PlanAnswer> take_answer();
  // Was something asked for that is not answered yet? May wait.
  bool is_busy() const;

  // --- the planner's side ---

  void open();
  // Requests and answers are lost; who waits is told.
  void close();
  // The next request; none once closed. `wait` waits for one.
  std::optional<PlanRequest> wait();
  std::optional<PlanRequest> poll();
  // Nobody waits for the answer to the last request any more.
  bool is_cancelled() const {
    return is_cancelled_.load(std::memory_order_relaxed);
  }
  // Sleeps until then, or until it is cancelled. False: that.
  bool pause_until(std::chrono::steady_clock::time_point time);
  // No effect if it was cancelled.
  void answer(PlanAnswer answer);

  // For fork: nothing is half-done while `mutex` is held. The child has no
  // planner.
  void lock_for_fork();
  void unlock_in_parent();
  void reset_in_child();

 private:
  using Lock = std::unique_lock<std::mutex>;

  std::optional<PlanRequest> start_next();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<PlanRequest> request_; // not begun
  bool is_searching_ = false;
  std::optional<PlanAnswer> answer_;
  uint64_t last_session_ = 0;
  std::atomic<uint64_t> session_{0};
  std::atomic<bool> is_cancelled_{false};
};

} // namespace c10::remat
