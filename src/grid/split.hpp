// Split-K: a GEMM with fewer tiles than workers computes each tile's sum over K in several parts.
#pragma once

#include "shingle/grid/tile_grid.hpp"

namespace shingle {

/// Number of parts into which split-K cuts the sum of each tile. Each part goes to a worker that would
/// otherwise be idle. A part covers at least 512 elements of K. There are at most 8 parts, because the last
/// one adds up all others.
constexpr std::int64_t split_parts(std::int64_t tiles, std::int64_t k, std::int64_t workers) {
  constexpr std::int64_t shortest = 512, most = 8;
  const std::int64_t each = workers / larger(tiles, 1);
  return larger(smaller(smaller(each, k / shortest), most), 1);
}

}  // namespace shingle
