// Device code that looks up the address of a tile's row.
#pragma once

#include "cuda/kernels/elementwise.hpp"

namespace shingle::cuda {

/// Position and coordinates of a tile, for lookups in hook tables.
struct TileSpot {
  std::int64_t position;  ///< in the grid's order; used only by routes by tile
  std::int32_t m;
  std::int32_t n;
  bool sum;  ///< the tile adds other ranks' parts to its product
};

/// Address of row `row` of a tile; null if the row has none. It points at the tile's column 0 for routes by
/// tile, at the grid's column 0 for others.
__device__ inline char* row_of(const Route& route, const TileSpot& tile, std::int32_t tile_rows,
                               std::int32_t row, std::int32_t dest = 0) {
  if (route.table == nullptr)
    return route.base + route.shift + (static_cast<std::int64_t>(tile.m) * tile_rows + row) * route.row_bytes;
  std::int32_t piece = 0;
  if (route.pieces > 1) {
    piece = route.piece_rows == 1 ? row
                                  : static_cast<std::int32_t>(static_cast<std::uint32_t>(row) /
                                                              static_cast<std::uint32_t>(route.piece_rows));
    row -= piece * route.piece_rows;
  }
  const std::int64_t index = route.by_tile ? tile.position : tile.m;
  char* const at = route.table[(index * route.pieces + piece) * route.dests + dest];
  return at == nullptr ? nullptr : at + route.shift + row * route.row_bytes;
}

/// Elements from that address to the tile's column 0.
__device__ inline std::int32_t first_col(const Route& route, const TileSpot& tile, std::int32_t tile_cols) {
  return route.by_tile ? 0 : tile.n * tile_cols;
}

/// Copies the routes of a pass's sources to shared memory, with the shifts of the call. Called by all threads
/// of the CTA before a CTA barrier.
__device__ inline void load_sources(const ElementwiseArgs& args, Route* sources) {
  for (int i = static_cast<int>(threadIdx.x); i < args.source_count; i += static_cast<int>(blockDim.x)) {
    sources[i] = args.sources[i];
    sources[i].shift = args.shifts.of[sources[i].matrix];
  }
}

}  // namespace shingle::cuda
