#include "piece_count.hpp"

namespace shingle {

std::int64_t runs_at_most(const RowMap& map, std::int64_t rows) {
  if (map.pitch > 0) return smaller(rows, 3 * (rows / map.pitch + 2));
  if (map.world == 1) return smaller(rows, 3);
  return smaller(rows, 2 * (rows / map.block + map.world + 2));
}

namespace {

/// Upper bound on the pieces of a tile of `rows` rows on one rank.
struct PiecesOfRows {
  static constexpr std::int64_t row_by_row = 16;  // cost of a row that a routing places, in pieces
  std::int64_t rows;

  std::int64_t operator()(const placement::Matrix& at) const { return runs_at_most(at.rows, rows); }
  std::int64_t operator()(const placement::Slots&) const { return 1; }
  std::int64_t operator()(const placement::Subtiles& at) const { return at.parts; }
  std::int64_t operator()(const placement::Pools&) const { return rows * row_by_row; }
  std::int64_t operator()(const placement::Routed&) const { return rows * row_by_row; }
  std::int64_t operator()(const placement::Returned&) const { return rows * row_by_row; }
  std::int64_t operator()(const placement::Indexed&) const { return rows; }
  std::int64_t operator()(const placement::Owners& at) const {
    return runs_at_most(at.rows, rows) + rows / at.rows.stride;
  }
};

}  // namespace

std::int64_t pieces_at_most(const Placement& at, const TileRect& tile) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  if (tile.rows == 0 || tile.cols == 0) return 0;
  const std::int64_t pieces = std::visit(PiecesOfRows{tile.rows}, at.form);
  const auto ranks = larger(static_cast<std::int64_t>(replicas(at).size()), 1);
  // Rows and parts are below 2^33, and so is the number of ranks.
  return smaller(pieces, most) > most / ranks ? most : pieces * ranks;
}

}  // namespace shingle
