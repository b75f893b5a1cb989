// The routing of an operator at its largest m.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "shingle/plan/routing.hpp"

namespace shingle {

/// Every rank sends `rows` rows to rank 0. No other routing of so many rows needs a larger arena.
inline std::shared_ptr<const Routing> all_to_first(int world, std::int64_t rows) {
  return std::make_shared<const Routing>(std::vector(
      static_cast<std::size_t>(world), std::vector<std::int32_t>(static_cast<std::size_t>(rows), 0)));
}

/// Rows of the rank that sends most.
inline std::int64_t most_rows(const Routing& routing) {
  std::int64_t most = 0;
  for (int rank = 0; rank < routing.world(); ++rank) most = std::max(most, routing.rows(rank));
  return most;
}

}  // namespace shingle
