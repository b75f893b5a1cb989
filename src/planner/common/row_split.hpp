// How rows are split over chunks, shards and slices.
#pragma once

#include <cstdint>

#include "shingle/plan/plan.hpp"

namespace shingle::planner {

/// First row of chunk i of `count` even chunks, in units of `unit` rows; i = count: the end.
std::int64_t chunk_begin(std::int64_t rows, std::int64_t count, std::int64_t i, std::int64_t unit = 1);

/// Number of rows in a shard of contiguous rows, without padding.
std::int64_t rows_of_shard(const Problem& problem, int shard);
/// Number of rows in the slice [first, first + len) of all shards, in the problem's row order. Padding, last
/// in virtual order, is not counted.
std::int64_t rows_in_slice(const Problem& problem, std::int64_t first, std::int64_t len);

/// Number of a rank's rows among the first `row` rows of a problem with block-cyclic rows.
std::int64_t dealt_before(const Problem& problem, int rank, std::int64_t row);

/// Virtual rows in global order → rows of a buffer that holds `len` rows of each shard, from `base` on. The
/// parts follow one another, `len` rows apart. Shards are in the problem's row order.
RowMap sharded_rows(const Problem& problem, std::int64_t len, std::int64_t base = 0);

}  // namespace shingle::planner
