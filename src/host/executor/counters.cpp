#include "counters.hpp"

namespace shingle::host {
namespace {

std::size_t entries(const Plan& plan, int rank) {
  std::size_t count = 0;
  for (const Counter& counter : plan.counters) count += counter.growth[static_cast<std::size_t>(rank)].size();
  return count;
}

}  // namespace

CounterTable::CounterTable(const Plan& plan, int rank, std::uint32_t epoch) : values_(entries(plan, rank)) {
  std::size_t next = 0;
  for (const Counter& counter : plan.counters) {
    first_.push_back(next);
    for (const std::uint32_t growth : counter.growth[static_cast<std::size_t>(rank)])
      values_[next++].store(epoch * growth, std::memory_order_relaxed);
  }
}

// Both sides are sequentially consistent: here the add and the check for sleepers, in await() the sleeper's
// announcement and its read of the count. At least one side therefore sees the other, and no wake-up is lost.
// Without sleepers an add takes no lock.
void CounterTable::add(std::int32_t counter, std::int64_t entry, std::uint32_t value) {
  const std::size_t at = index(counter, entry);
  values_[at].fetch_add(value);
  if (waiting_.load() > 0) wake(at);
}

void CounterTable::raise(std::int32_t counter, std::int64_t entry, std::uint32_t value) {
  const std::size_t at = index(counter, entry);
  std::uint32_t seen = values_[at].load();
  while (!reached(seen, value) && !values_[at].compare_exchange_weak(seen, value)) {
  }
  if (waiting_.load() > 0) wake(at);
}

std::uint32_t CounterTable::value(std::int32_t counter, std::int64_t entry) const {
  return values_[index(counter, entry)].load();
}

void CounterTable::wake(std::size_t index) {
  const std::lock_guard lock(mutex_);
  for (Waiter& waiter : waiters_)
    if (waiter.index == index && reached(values_[index].load(), waiter.target)) waiter.reached.notify_one();
}

bool CounterTable::await(std::int32_t counter, std::int64_t entry, std::uint32_t target, const Health& health,
                         Clock::time_point deadline) {
  const std::size_t at = index(counter, entry);
  const auto ready = [&] { return reached(values_[at].load(), target); };
  if (ready()) return true;
  std::unique_lock lock(mutex_);
  const auto waiter = waiters_.emplace(waiters_.end());
  waiter->index = at;
  waiter->target = target;
  waiting_.fetch_add(1);
  struct Leave {  // runs also when Stopped is thrown; the lock is held then
    CounterTable& table;
    std::list<Waiter>::iterator waiter;
    ~Leave() {
      table.waiting_.fetch_sub(1);
      table.waiters_.erase(waiter);
    }
  } leave{*this, waiter};
  return wait_until(lock, waiter->reached, health, deadline, ready);
}

}  // namespace shingle::host
