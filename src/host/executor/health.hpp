// Whether a world still works: a flag that the first failure raises and nothing lowers, and the waits that
// watch it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "backend/failure.hpp"

namespace shingle::host {

using Clock = std::chrono::steady_clock;

/// Caps times at three years, so that adding them to a time point cannot overflow.
inline Clock::duration from_us(double us) {
  constexpr double longest_us = 1e14;
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::micro>(std::min(us, longest_us)));
}
inline double to_us(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

/// Thrown in a thread that stops because another thread failed. Never leaves the backend.
struct Stopped {};

/// Longest time that a sleeper takes to notice that the world has stopped. Polling needs no list of all
/// sleepers; waking them would.
inline constexpr std::chrono::milliseconds attention{20};
/// Max. sleepers that poll in one millisecond. Polling by thousands of sleepers would keep the cores busy.
inline constexpr int glances_per_ms = 8;

class Health : public FirstFailure {
 public:
  void check() const {
    if (stopped().load(std::memory_order_acquire)) throw Stopped{};
  }

  /// Announces how many threads may sleep at once.
  void expect(std::size_t sleepers) {
    attention_ = std::max(attention_.load(), static_cast<std::int64_t>(sleepers) / glances_per_ms);
  }
  /// Interval at which a sleeper of this world polls for a stop.
  std::chrono::milliseconds attention() const { return std::chrono::milliseconds(attention_.load()); }

 private:
  std::atomic<std::int64_t> attention_{host::attention.count()};
};

/// Returns true once `ready()` holds, false at the deadline. Throws Stopped when the world stops. `lock`
/// guards what ready() reads. The thread that makes ready() true must notify `changed`.
template <class Ready>
bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, const Health& health,
                Clock::time_point deadline, Ready ready) {
  while (!ready()) {
    health.check();
    const auto now = Clock::now();
    if (now >= deadline) return false;
    changed.wait_until(lock, std::min(deadline, now + health.attention()));
  }
  return true;
}

/// Sleeps until `time`. Throws Stopped if the world stops first.
void sleep_until(Clock::time_point time, const Health& health);

}  // namespace shingle::host
