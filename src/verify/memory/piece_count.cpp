#include "piece_count.hpp"

namespace shingle {

std::int64_t runs_at_most(const RowMap& map, std::int64_t rows) {
  if (map.pitch > 0) return smaller(rows, 3 * (rows / map.pitch + 2));
  if (map.world == 1) return smaller(rows, 3);
  return smaller(rows, 2 * (rows / map.block + map.world + 2));
}

std::int64_t pieces_at_most(const Placement& at, const TileRect& tile) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  constexpr std::int64_t row_by_row = 16;  // cost of a row that a routing places, in pieces
  if (tile.rows == 0 || tile.cols == 0) return 0;
  std::int64_t pieces = 1;
  switch (at.kind) {
    case PlacementKind::matrix:
      pieces = runs_at_most(at.rows, tile.rows);
      break;
    case PlacementKind::owners:
      pieces = runs_at_most(at.rows, tile.rows) + tile.rows / at.rows.stride;
      break;
    case PlacementKind::slots:
      break;
    case PlacementKind::subtiles:
      pieces = at.parts;
      break;
    case PlacementKind::pools:
    case PlacementKind::routed:
      pieces = tile.rows * row_by_row;
      break;
  }
  // Rows and parts are below 2^33, and so is the number of ranks.
  return smaller(pieces, most) > most / larger(static_cast<std::int64_t>(at.ranks.size()), 1)
             ? most
             : pieces * larger(static_cast<std::int64_t>(at.ranks.size()), 1);
}

}  // namespace shingle
