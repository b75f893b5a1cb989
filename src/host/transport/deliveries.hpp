// Stores to other ranks, on their way: a device's stores are posted, so whoever stored goes on at once, and
// the count that says "it is there" grows when the paced link has carried them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <tuple>
#include <vector>

#include "host/executor/health.hpp"

namespace shingle::host {

class Deliveries {
 public:
  Deliveries() = default;
  ~Deliveries();
  Deliveries(const Deliveries&) = delete;
  Deliveries& operator=(const Deliveries&) = delete;

  /// Calls `arrive` at the given time, from a thread of its own; at once where that has passed.
  void post(Clock::time_point time, std::function<void()> arrive);
  /// Returns when all that was posted has arrived. Throws Stopped.
  void drain(const Health& health);

 private:
  struct Posted {
    Clock::time_point time;
    std::uint64_t number;  ///< what was posted first arrives first
    std::function<void()> arrive;
    bool operator>(const Posted& o) const { return std::tie(time, number) > std::tie(o.time, o.number); }
  };
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_, drained_;
  std::priority_queue<Posted, std::vector<Posted>, std::greater<>> posted_;
  std::uint64_t count_ = 0;
  bool arriving_ = false;
  bool quit_ = false;
  std::thread thread_;  // started by the first post
};

}  // namespace shingle::host
