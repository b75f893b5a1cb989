// The order in which a rank issues its steps, as one hardware queue that all of its lanes share.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Positions count all epochs: the first step of epoch 1 follows the last step of epoch 0.
class IssueQueue {
 public:
  explicit IssueQueue(const RankPlan& rank) : positions_(rank.lanes.size()) {
    for (const std::int32_t lane : rank.issue) {
      auto& positions = positions_[lane];
      steps_.emplace_back(lane, static_cast<std::int32_t>(positions.size()));
      positions.push_back(static_cast<std::int64_t>(steps_.size()) - 1);
    }
  }

  std::int64_t position(std::int32_t lane, std::size_t step, std::int32_t epoch) const {
    return epoch * static_cast<std::int64_t>(steps_.size()) + positions_[lane][step];
  }
  /// Position of the next step in the queue.
  std::int64_t head() const { return head_; }
  void advance() { ++head_; }
  /// Lane and step at the head.
  std::pair<std::int32_t, std::int32_t> next() const {
    return steps_[static_cast<std::size_t>(head_) % steps_.size()];
  }

 private:
  std::vector<std::vector<std::int64_t>> positions_;          // [lane][step]
  std::vector<std::pair<std::int32_t, std::int32_t>> steps_;  // lane and step by position
  std::int64_t head_ = 0;
};

}  // namespace shingle
