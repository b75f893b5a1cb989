// The routing of an operator at its largest m.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "shingle/plan/problem.hpp"

namespace shingle {

/// Every source sends all of its rows to the first destination. No other routing of so many rows needs a
/// larger arena.
inline std::shared_ptr<const Routing> all_to_first(const Problem& largest) {
  std::vector table(static_cast<std::size_t>(largest.sources()),
                    std::vector<std::int32_t>(static_cast<std::size_t>(largest.m * largest.choices()), 0));
  return std::make_shared<const Routing>(
      largest.traits().grouped
          ? Routing::to_experts(std::move(table), largest.experts.count, largest.traits().expert_split())
          : Routing(std::move(table)));
}

/// Rows of the rank that sends most.
inline std::int64_t most_rows(const Routing& routing) {
  std::int64_t most = 0;
  for (int rank = 0; rank < routing.world(); ++rank) most = std::max(most, routing.rows(rank));
  return most;
}

}  // namespace shingle
