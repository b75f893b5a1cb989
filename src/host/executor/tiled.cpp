#include "tiled.hpp"

#include <algorithm>

namespace shingle::host {
namespace {

void notify_all(Engine& engine, const Caller& caller, const std::vector<TileNotify>& hooks,
                std::int64_t position) {
  for (const TileNotify& hook : hooks) {
    const std::int64_t group = group_of(hook.ends, position);
    hook.for_each_rank(
        group, [&](std::int32_t rank) { engine.notify(caller, {hook.counter, rank, hook.entry(group)}, 1); });
  }
}

}  // namespace

TiledJob::TiledJob(Engine& engine, const Caller& caller, TiledStep step)
    : engine_(engine), caller_(caller), step_(std::move(step)) {
  if (!step_.notify.empty()) {
    ends_ = &step_.notify.front().ends;
  } else if (!step_.gates.empty()) {
    ends_ = &step_.gates.front().ends;
  }
  intervals_.resize(ends_ != nullptr ? ends_->size() : 1);
  if (step_.blocks > 1) {
    const auto items = static_cast<std::size_t>(step_.last - step_.first);
    blocks_left_ = std::make_unique<std::atomic<std::int64_t>[]>(items);
    for (std::size_t i = 0; i < items; ++i) blocks_left_[i].store(step_.blocks, std::memory_order_relaxed);
  }
}

void TiledJob::work(Worker& worker) {
  std::vector<Interval> seen(intervals_.size());
  for (;;) {
    const std::int64_t claimed = claim();
    const std::int64_t item = step_.first + claimed / step_.blocks;
    if (item >= step_.last) break;
    if (!step_.row_wise && step_.grid.phantom(step_.grid.tile(item))) continue;
    engine_.health().check();
    if (!engine_.trace) {
      compute(worker, item, claimed % step_.blocks);
      continue;
    }
    const double begin = engine_.now_us();
    compute(worker, item, claimed % step_.blocks);
    Interval& interval = seen[group(item)];
    if (interval.end_us == 0) interval.begin_us = begin;
    interval.end_us = engine_.now_us();
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t g = 0; g < seen.size(); ++g) {
    if (seen[g].end_us == 0) continue;
    Interval& all = intervals_[g];
    all.begin_us = all.end_us == 0 ? seen[g].begin_us : std::min(all.begin_us, seen[g].begin_us);
    all.end_us = std::max(all.end_us, seen[g].end_us);
  }
}

/// Claims the next block, in order.
std::int64_t TiledJob::claim() {
  if (step_.queue == nullptr) return next_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t none = std::uint64_t{caller_.epoch} << 32;  // nothing claimed in this epoch
  std::uint64_t seen = step_.queue->load(std::memory_order_relaxed), taken;
  do {
    taken = seen >> 32 == caller_.epoch ? seen : none;
    if (static_cast<std::int64_t>(taken - none) >= step_.last - step_.first) break;
  } while (!step_.queue->compare_exchange_weak(seen, taken + 1, std::memory_order_relaxed));
  return static_cast<std::int64_t>(taken - none);
}

void TiledJob::compute(Worker& worker, std::int64_t item, std::int64_t block) {
  wait_at_gates(item);
  step_.compute(worker, item, block);
  // The thread that finishes an item's last block acquires what the other threads released with their blocks.
  if (!blocks_left_ || blocks_left_[static_cast<std::size_t>(item - step_.first)].fetch_sub(1) == 1)
    complete(item);
  engine_.progress.advance(caller_);
}

/// Notifies for the item, once its remote stores have arrived.
void TiledJob::complete(std::int64_t item) {
  const std::int64_t bytes = step_.crossing ? step_.crossing(item) : 0;
  if (bytes == 0) return notify(item);
  const int own[] = {caller_.rank};
  const auto there = engine_.world->links.book(own, Clock::now(), static_cast<double>(bytes));
  {
    const std::lock_guard lock(mutex_);
    delivered_ = std::max(delivered_, there);
  }
  if (step_.notify.empty()) return;
  // The job may be destroyed by then, so the callback uses the plan's hooks.
  engine_.deliveries.post(there, [&engine = engine_, caller = caller_, &hooks = step_.notify, item] {
    notify_all(engine, caller, hooks, item);
  });
}

void TiledJob::wait_at_gates(std::int64_t position) const {
  for (const TileGate& gate : step_.gates) {
    const auto g = group_of(gate.ends, position);
    const std::uint32_t target = gate.targets[static_cast<std::size_t>(g)];
    if (target > 0) engine_.await(caller_, {gate.counter, caller_.rank, gate.entry(g)}, target);
  }
}

void TiledJob::notify(std::int64_t position) const {
  notify_all(engine_, caller_, step_.notify, position);
}

std::size_t TiledJob::group(std::int64_t item) const {
  return ends_ == nullptr ? 0 : static_cast<std::size_t>(group_of(*ends_, item));
}

std::vector<Span> TiledJob::spans() const {
  std::vector<Span> spans;
  for (std::size_t g = 0; g < intervals_.size(); ++g)
    if (intervals_[g].end_us > 0)
      spans.push_back({caller_.rank, caller_.lane, caller_.step,
                       ends_ == nullptr ? -1 : static_cast<std::int32_t>(g),
                       static_cast<std::int32_t>(caller_.epoch - engine_.first_epoch), intervals_[g].begin_us,
                       intervals_[g].end_us});
  return spans;
}

}  // namespace shingle::host
