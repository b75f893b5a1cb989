// Whether a world still works: a flag that is raised by the first failure and never lowered, and the waits
// that watch it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "backend/failure.hpp"

namespace shingle::host {

using Clock = std::chrono::steady_clock;

/// Times beyond three years are three years: what is added to a point in time must not overflow.
inline Clock::duration from_us(double us) {
  constexpr double longest_us = 1e14;
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::micro>(std::min(us, longest_us)));
}
inline double to_us(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

/// Thrown in a thread that stops because another one failed. Never leaves the backend.
struct Stopped {};

/// How long a sleeper may overlook that the world has stopped. Waking it would need a list of all sleepers;
/// this needs none.
inline constexpr std::chrono::milliseconds attention{20};
/// Of how many sleepers one looks about in a millisecond at most: thousands would keep the cores busy with
/// it.
inline constexpr int glances_per_ms = 8;

class Health : public FirstFailure {
 public:
  void check() const {
    if (stopped().load(std::memory_order_acquire)) throw Stopped{};
  }

  /// There are as many threads as this that may sleep at once.
  void expect(std::size_t sleepers) {
    attention_ = std::max(attention_.load(), static_cast<std::int64_t>(sleepers) / glances_per_ms);
  }
  /// How long a sleeper of this world sleeps before it looks whether the world has stopped.
  std::chrono::milliseconds attention() const { return std::chrono::milliseconds(attention_.load()); }

 private:
  std::atomic<std::int64_t> attention_{host::attention.count()};
};

/// Waits until `ready()` holds: true; or until the deadline: false. Throws Stopped when the world stops.
/// `lock` guards what ready() reads, and whoever makes it true notifies `changed`.
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

/// Sleeps, unless the world stops: then throws Stopped.
void sleep_until(Clock::time_point time, const Health& health);

}  // namespace shingle::host
