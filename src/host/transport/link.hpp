// The paced links of a world's ranks. Each link carries one transfer at a time.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "host/executor/health.hpp"
#include "shingle/base/units.hpp"

namespace shingle::host {

class Links {
 public:
  Links(const Link& link, int ranks) : link_(link), busy_until_(static_cast<std::size_t>(ranks)) {}

  /// Books a transfer that moves `bytes` over the busiest link. It begins at `ready`, or later when the links
  /// of `ranks` are free. Returns the time when the transfer is done; on links that are not paced, `ready`.
  Clock::time_point book(std::span<const int> ranks, Clock::time_point ready, double bytes) {
    if (!link_.paced()) return ready;
    const std::lock_guard lock(mutex_);
    for (const int rank : ranks) ready = std::max(ready, busy_until_[static_cast<std::size_t>(rank)]);
    ready += from_us(link_.transfer_us(bytes));
    for (const int rank : ranks) busy_until_[static_cast<std::size_t>(rank)] = ready;
    return ready;
  }

 private:
  Link link_;
  std::mutex mutex_;
  std::vector<Clock::time_point> busy_until_;
};

}  // namespace shingle::host
