// The counters of one rank: 32-bit counts that only grow. Any thread may add to them, and may await them
// without spinning.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include "health.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

class CounterTable {
 public:
  /// The counts as they are at the begin of `epoch`.
  CounterTable(const Plan& plan, int rank, std::uint32_t epoch);

  /// Releases the caller's earlier stores. `add` adds `value`; `raise` sets `value` and never lowers the
  /// count.
  void add(std::int32_t counter, std::int64_t entry, std::uint32_t value);
  void raise(std::int32_t counter, std::int64_t entry, std::uint32_t value);

  std::uint32_t value(std::int32_t counter, std::int64_t entry) const;

  /// Acquires what was stored before the count reached `target` (compared modulo 2^32). Returns false if the
  /// deadline passes first; throws Stopped.
  bool await(std::int32_t counter, std::int64_t entry, std::uint32_t target, const Health& health,
             Clock::time_point deadline);

 private:
  struct Waiter {
    std::size_t index;
    std::uint32_t target;
    std::condition_variable reached;
  };
  std::size_t index(std::int32_t counter, std::int64_t entry) const {
    return first_[static_cast<std::size_t>(counter)] + static_cast<std::size_t>(entry);
  }
  void wake(std::size_t index);

  std::vector<std::size_t> first_;  // index of each counter's first entry in values_
  std::vector<std::atomic<std::uint32_t>> values_;
  std::mutex mutex_;
  std::list<Waiter> waiters_;
  std::atomic<int> waiting_{0};
};

/// True if `value` has reached `target`. Both are modulo 2^32 and less than 2^31 apart.
inline bool reached(std::uint32_t value, std::uint32_t target) {
  return value - target < 0x8000'0000u;
}

}  // namespace shingle::host
