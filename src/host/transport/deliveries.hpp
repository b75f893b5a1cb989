// Stores to other ranks in flight. Device stores are posted, so the storing lane goes on at once. The
// notification follows when the paced link has carried the bytes.
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

  /// Calls `arrive` at `time` from this object's thread, or at once if `time` has passed.
  void post(Clock::time_point time, std::function<void()> arrive);
  /// Returns when everything posted has arrived. Throws Stopped.
  void drain(const Health& health);

 private:
  struct Posted {
    Clock::time_point time;
    std::uint64_t number;  ///< order of posting; breaks ties in time
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
