#include "deliveries.hpp"

#include "host/executor/scheduling.hpp"

namespace shingle::host {

Deliveries::~Deliveries() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Deliveries::post(Clock::time_point time, std::function<void()> arrive) {
  if (time <= Clock::now()) return arrive();
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  const bool first = posted_.empty() || time < posted_.top().time;
  posted_.push({time, count_++, std::move(arrive)});
  if (first) changed_.notify_all();
}

void Deliveries::drain(const Health& health) {
  std::unique_lock lock(mutex_);
  wait_until(lock, drained_, health, Clock::time_point::max(), [&] { return posted_.empty() && !arriving_; });
}

void Deliveries::serve() {
  sleep_precisely();
  wake_promptly();
  std::unique_lock lock(mutex_);
  while (!quit_) {
    if (posted_.empty()) {
      drained_.notify_all();
      changed_.wait(lock);
    } else if (const auto due = posted_.top().time; due > Clock::now()) {
      changed_.wait_until(lock, due);
    } else {
      const auto arrive = posted_.top().arrive;
      posted_.pop();
      arriving_ = true;
      lock.unlock();
      arrive();
      lock.lock();
      arriving_ = false;
    }
  }
}

}  // namespace shingle::host
