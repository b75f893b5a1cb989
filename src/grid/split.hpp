// Split-K: a product with fewer tiles than there are workers, whose sums over K are cut into parts.
#pragma once

#include "shingle/grid/tile_grid.hpp"

namespace shingle {

/// In how many parts the sums of so many tiles are best cut: as many as workers that they leave idle can
/// take, none shorter than 512 of K, and at most 8, since the last one adds up all others.
constexpr std::int64_t split_parts(std::int64_t tiles, std::int64_t k, std::int64_t workers) {
  constexpr std::int64_t shortest = 512, most = 8;
  const std::int64_t each = workers / larger(tiles, 1);
  return larger(smaller(smaller(each, k / shortest), most), 1);
}

}  // namespace shingle
