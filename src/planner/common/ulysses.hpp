// Shared by the plans of ulysses-attention (docs/mechanisms/attention.md).
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// Columns [col, col + cols) of a slice.
inline Slice columns(Slice slice, std::int64_t col, std::int64_t cols) {
  slice.col += col;
  slice.cols = cols;
  return slice;
}

/// Grid of a copy that separates a matrix by columns. A tile is a block of rows by the columns of one rank.
/// The blocks of a rank are consecutive; rank `first` comes first.
TileGrid by_columns(std::int64_t rows, std::int64_t cols, std::int64_t rank_cols, int first = 0);

}  // namespace shingle::planner
