// Rows that a routing moves, and the buffers that experts have for them.
#pragma once

#include <vector>

#include "builder.hpp"

namespace shingle::planner {

/// Rows that each rank has, and rows that it receives.
struct RoutedRows {
  explicit RoutedRows(const Routing& routing);

  std::vector<std::int64_t> sent, received;  ///< by rank
};

/// Buffers of experts whose rows move by all-to-all: tokens from `packed` to `arrivals`, and products from
/// `products` to `returns`. -1 if the operator moves none.
struct RoutedBuffers {
  /// Declares them.
  RoutedBuffers(Builder& build, const RoutedRows& rows);

  std::int32_t packed = -1, arrivals = -1, products = -1, returns = -1;
};

}  // namespace shingle::planner
