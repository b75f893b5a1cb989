// ulysses-attention (docs/mechanisms/attention.md): what its plans share.
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// The baseline: all-to-all of Q, K and V, attention, all-to-all of its result.
void ulysses_in_sequence(Builder& build);

/// Messages of one group of heads and one piece of a shard each, beside the attention of another.
void ulysses_by_slices(Builder& build);

/// As many groups of heads as K and V can be cut into, up to eight.
std::int32_t default_ulysses_slices(const Problem& problem);

/// Columns [col, col + cols) of a slice.
inline Slice columns(Slice slice, std::int64_t col, std::int64_t cols) {
  slice.col += col;
  slice.cols = cols;
  return slice;
}

/// A copy that tells a matrix apart by columns: a tile is a block of its rows by as many columns as one rank
/// has, and the blocks of a rank follow one another. The rank `first` comes first.
TileGrid by_columns(std::int64_t rows, std::int64_t cols, std::int64_t rank_cols, int first = 0);

/// The tiles of a grid one after another in a slice.
Placement stacked(const Slice& slice);

}  // namespace shingle::planner
