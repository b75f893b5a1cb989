// A tiled step at work. Any number of threads claim its items in order. Each thread waits at the item's
// gates, computes the item and notifies.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine.hpp"
#include "pool.hpp"

namespace shingle::host {

struct TiledStep {
  const TileGrid& grid;
  const std::vector<TileGate>& gates;
  const std::vector<TileNotify>& notify;
  std::int64_t first =
      0;  ///< items [first, last): positions of the grid; for a row-wise step, its rows of tiles
  std::int64_t last = 0;
  bool row_wise = false;
  std::int64_t blocks = 1;  ///< number of blocks in every item
  /// Claim word in Engine::queues, if the step has a work queue
  std::atomic<std::uint64_t>* queue = nullptr;
  /// Bytes of an item that leave the rank; empty: none of any item
  std::function<std::int64_t(std::int64_t item)> crossing{};
  std::function<void(Worker&, std::int64_t item, std::int64_t block)> compute;
};

class TiledJob final : public Job {
 public:
  TiledJob(Engine& engine, const Caller& caller, TiledStep step);

  void work(Worker& worker) override;
  /// Time when the last remote store has arrived.
  Clock::time_point delivered() const { return delivered_; }
  /// One span per group, or one for the step if it has no groups. Only when the run is traced.
  std::vector<Span> spans() const;

 private:
  struct Interval {
    double begin_us = 0, end_us = 0;
  };
  std::int64_t claim();
  void compute(Worker& worker, std::int64_t item, std::int64_t block);
  void complete(std::int64_t item);
  void wait_at_gates(std::int64_t position) const;
  void notify(std::int64_t position) const;
  std::size_t group(std::int64_t item) const;

  Engine& engine_;
  const Caller caller_;
  const TiledStep step_;
  const std::vector<std::int64_t>* ends_ = nullptr;  // ends of the groups that spans tell apart
  std::atomic<std::int64_t> next_{0};
  // By item; null unless items are cut into blocks
  std::unique_ptr<std::atomic<std::int64_t>[]> blocks_left_;
  std::mutex mutex_;
  std::vector<Interval> intervals_;
  Clock::time_point delivered_{};
};

}  // namespace shingle::host
