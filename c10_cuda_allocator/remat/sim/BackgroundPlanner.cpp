#include "BackgroundPlanner.h"

#include "PlanSearch.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

namespace c10::remat {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// Steps of a simulation between two looks at the clock.
constexpr uint32_t kStepsPerLook = 64;
// So long it runs at a stretch.
constexpr nanoseconds kStretch = std::chrono::milliseconds(2);

nanoseconds cpu_time_of_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

// Sleeps as long as it takes to stay within a share of a core.
class Throttle {
 public:
  Throttle(PlanExchange& exchange, double share)
      : exchange_(exchange), share_(share) {}

  // False: the search is no longer wanted.
  bool may_go_on() {
    if (++steps_ % kStepsPerLook != 0) {
      return true;
    }
    const nanoseconds used = cpu_time_of_thread() - cpu_start_;
    if (used >= slept_at_ + kStretch) {
      slept_at_ = used;
      return exchange_.pause_until(
          start_ +
          nanoseconds(static_cast<int64_t>(
              static_cast<double>(used.count()) / share_)));
    }
    return !exchange_.is_cancelled();
  }

 private:
  PlanExchange& exchange_;
  const double share_;
  const Clock::time_point start_ = Clock::now();
  const nanoseconds cpu_start_ = cpu_time_of_thread();
  nanoseconds slept_at_{0}; // CPU time
  uint32_t steps_ = 0;
};

// Signals are for the program's threads.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

void lower_priority() {
#ifdef __linux__
  // Of this thread alone. Where it is refused the share still holds.
  (void)setpriority(
      PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), /*nice=*/19);
  pthread_setname_np(pthread_self(), "remat-planner");
#endif
}

void serve(PlanExchange& exchange, double share) {
  lower_priority();
  while (const auto request = exchange.wait()) {
    Throttle throttle(exchange, share);
    const std::function<bool()> may_go_on = [&] {
      return throttle.may_go_on();
    };
    std::optional<PlanAnswer> answer;
    try {
      answer = search_plan(*request, &may_go_on);
    } catch (const std::exception&) {
      // Out of memory, say: the program goes on without a plan.
      answer.emplace();
      answer->iteration = request->iteration;
      answer->budget = request->budget;
    }
    if (answer) {
      exchange.answer(std::move(*answer));
    }
  }
}

} // namespace

void BackgroundPlanner::start(
    std::shared_ptr<PlanExchange> exchange,
    double share) {
  if (exchange == nullptr || share <= 0) {
    stop();
    return;
  }
  if (exchange == exchange_ && share == share_) {
    return;
  }
  stop();
  exchange->open();
  // Blocked here, so that the thread never has them unblocked.
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  block_signals();
  try {
    thread_ = std::thread([exchange, share] { serve(*exchange, share); });
    exchange_ = std::move(exchange);
    share_ = share;
  } catch (const std::system_error&) {
    exchange->close();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void BackgroundPlanner::stop() noexcept {
  if (!thread_.joinable()) {
    return;
  }
  exchange_->close();
  thread_.join();
  exchange_ = nullptr;
}

void BackgroundPlanner::lock_for_fork() {
  if (exchange_ != nullptr) {
    exchange_->lock_for_fork();
  }
}

void BackgroundPlanner::unlock_in_parent() {
  if (exchange_ != nullptr) {
    exchange_->unlock_in_parent();
  }
}

void BackgroundPlanner::reset_in_child() {
  if (exchange_ != nullptr) {
    exchange_->reset_in_child();
    exchange_ = nullptr;
    new (&thread_) std::thread; // the old one is the parent's
  }
}

} // namespace c10::remat
