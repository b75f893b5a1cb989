// Where every lane stands: for diagnoses, and to detect a lane that makes no progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle::host {

/// A lane at work on a step. Epochs are counted over all runs of the executable.
struct Caller {
  int rank = 0;
  int lane = 0;
  int step = 0;
  std::uint32_t epoch = 0;
};

class Progress {
 public:
  struct Position {
    std::uint32_t epoch = 0;
    std::int32_t step = 0;  ///< the number of steps once the lane has finished the epoch
    auto operator<=>(const Position&) const = default;
  };

  explicit Progress(const Plan& plan) {
    for (const RankPlan& rank : plan.ranks) lanes_.emplace_back(rank.lanes.size());
  }

  void enter(const Caller& at) {
    lane(at.rank, at.lane)
        .position.store(std::uint64_t{at.epoch} << 32 | static_cast<std::uint32_t>(at.step));
    advance(at);
  }
  /// Records progress of the lane within its step.
  void advance(const Caller& at) { lane(at.rank, at.lane).advances.fetch_add(1, std::memory_order_relaxed); }

  Position position(int rank, int lane_index) const {
    const std::uint64_t packed = lane(rank, lane_index).position.load();
    return {static_cast<std::uint32_t>(packed >> 32), static_cast<std::int32_t>(packed & 0xffff'ffffu)};
  }
  /// Grows with every recorded progress of the rank's lanes; rank -1: of all lanes.
  std::uint64_t advances(int rank = -1) const {
    std::uint64_t total = 0;
    for (std::size_t r = 0; r < lanes_.size(); ++r)
      if (rank < 0 || static_cast<std::size_t>(rank) == r)
        for (const LaneProgress& lane : lanes_[r]) total += lane.advances.load(std::memory_order_relaxed);
    return total;
  }

 private:
  struct LaneProgress {
    std::atomic<std::uint64_t> position{0};
    std::atomic<std::uint64_t> advances{0};
  };
  const LaneProgress& lane(int rank, int lane) const {
    return lanes_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(lane)];
  }
  LaneProgress& lane(int rank, int lane) {
    return lanes_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(lane)];
  }
  std::vector<std::vector<LaneProgress>> lanes_;
};

}  // namespace shingle::host
