#include "PlanExchange.h"

#include <new>
#include <utility>

namespace c10::remat {

bool PlanExchange::ask(PlanRequest& request) {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || session() == 0) {
    return false;
  }
  if (request_ || (is_searching_ && !is_cancelled())) {
    return false;
  }
  answer_.reset();
  request_ = std::move(request);
  changed_.notify_all();
  return true;
}

std::optional<PlanAnswer> PlanExchange::take_answer() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return std::nullopt;
  }
  return std::exchange(answer_, std::nullopt);
}

bool PlanExchange::is_busy() const {
  const Lock lock(mutex_);
  return request_ || (is_searching_ && !is_cancelled());
}

void PlanExchange::open() {
  const Lock lock(mutex_);
  session_.store(++last_session_, std::memory_order_release);
}

void PlanExchange::close() {
  const Lock lock(mutex_);
  session_.store(0, std::memory_order_release);
  is_cancelled_.store(true, std::memory_order_relaxed);
  request_.reset();
  answer_.reset();
  changed_.notify_all();
}

std::optional<PlanRequest> PlanExchange::wait() {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return request_ || session() == 0; });
  return start_next();
}

std::optional<PlanRequest> PlanExchange::poll() {
  const Lock lock(mutex_);
  return start_next();
}

std::optional<PlanRequest> PlanExchange::start_next() {
  std::optional<PlanRequest> next = std::exchange(request_, std::nullopt);
  is_searching_ = next.has_value();
  if (next) {
    is_cancelled_.store(false, std::memory_order_relaxed);
  }
  return next;
}

bool PlanExchange::pause_until(std::chrono::steady_clock::time_point time) {
  Lock lock(mutex_);
  return !changed_.wait_until(lock, time, [&] { return is_cancelled(); });
}

void PlanExchange::answer(PlanAnswer answer) {
  const Lock lock(mutex_);
  if (is_searching_ && !is_cancelled()) {
    answer_ = std::move(answer);
  }
  is_searching_ = false;
}

void PlanExchange::lock_for_fork() {
  mutex_.lock();
}

void PlanExchange::unlock_in_parent() {
  mutex_.unlock();
}

void PlanExchange::reset_in_child() {
  // The planner may have been waiting.
  new (&changed_) std::condition_variable;
  new (&mutex_) std::mutex;
  session_ = 0;
  is_cancelled_ = true;
  request_.reset();
  answer_.reset();
  is_searching_ = false;
}

} // namespace c10::remat
