// All tiles of a grid at once.
#pragma once

#include <vector>

#include "shingle/grid/tile_grid.hpp"

namespace shingle {

/// The tiles at all positions, in order. TileGrid::tile() divides once a loop; this adds.
inline std::vector<Tile> tiles_of(const TileGrid& grid) {
  if (grid.positions() == 0) return {};
  std::vector<Tile> tiles{{}};
  std::int64_t unit[2] = {1, 1};
  for (int i = grid.loop_count - 1; i >= 0; --i) {  // from the inside: a loop repeats what is inside it
    const Loop& loop = grid.loops[i];
    const std::size_t inner = tiles.size();
    tiles.resize(inner * static_cast<std::size_t>(loop.extent));
    for (std::int64_t value = loop.extent - 1; value >= 0;
         --value) {  // the copy at 0 is the source of others
      const std::int64_t digit = loop.digit(value) * unit[int(loop.axis)];
      for (std::size_t j = 0; j < inner; ++j) {
        Tile tile = tiles[j];
        (loop.axis == Axis::m ? tile.m : tile.n) += digit;
        tiles[static_cast<std::size_t>(value) * inner + j] = tile;
      }
    }
    unit[int(loop.axis)] *= loop.extent;
  }
  return tiles;
}

}  // namespace shingle
