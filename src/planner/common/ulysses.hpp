// Shared by the plans of ulysses-attention (docs/mechanisms/attention.md).
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// The baseline: all-to-all of Q, K and V, attention, all-to-all of its result.
void ulysses_in_sequence(Builder& build);

/// Sends messages of one group of heads and one piece of a shard, while the attention of another is computed.
void ulysses_by_slices(Builder& build);

/// Default number of slices: as many groups of heads as K and V can be cut into, from 2 to 8.
std::int32_t default_ulysses_slices(const Problem& problem);

/// Columns [col, col + cols) of a slice.
inline Slice columns(Slice slice, std::int64_t col, std::int64_t cols) {
  slice.col += col;
  slice.cols = cols;
  return slice;
}

/// Grid of a copy that separates a matrix by columns. A tile is a block of rows by the columns of one rank.
/// The blocks of a rank are consecutive; rank `first` comes first.
TileGrid by_columns(std::int64_t rows, std::int64_t cols, std::int64_t rank_cols, int first = 0);

/// Stacks the tiles of a grid in a slice.
Placement stacked(const Slice& slice);

}  // namespace shingle::planner
