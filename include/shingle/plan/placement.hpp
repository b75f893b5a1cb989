// Expansion of a Placement: the pieces of a buffer that hold the rows of one tile. Verifier and executors
// share it.
#pragma once

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Rows [tile_row, tile_row + rows) of a tile are rows [row, row + rows) of the placement's buffer in the
/// memory of `rank` (absolute). They start at column `col` and are as wide as the tile.
struct Piece {
  std::int64_t tile_row = 0;
  std::int64_t rows = 0;
  std::int64_t row = 0;
  std::int64_t col = 0;
  std::int32_t rank = 0;
};

/// Number of rows from `source` to `dest` in the tiles before a position. Row 0 of the grid is row `first` of
/// the source.
inline std::int64_t routed_rows_before(const Routing& routing, const TileGrid& grid, std::int32_t source,
                                       std::int32_t dest, std::int64_t position, std::int64_t first = 0) {
  const auto before = [&](std::int64_t tile) {
    return routing.count_before(source, dest, first + smaller(tile * grid.tile_rows, grid.rows));
  };
  return grid.sum_before(
      position, [&](std::int64_t lo, std::int64_t hi) { return before(hi) - before(lo); }, TileGrid::Count{});
}

namespace placement {

/// Pieces of a tile that is not phantom: one overload for each form.
template <class Visit>
class Expansion {
 public:
  Expansion(const Slice& slice, const TileGrid& grid, const Routing* routing, std::int64_t linear,
            const TileRect& tile, Visit& visit)
      : slice_(slice), grid_(grid), routing_(routing), linear_(linear), tile_(tile), visit_(visit) {}

  void operator()(const Matrix& at) const {
    at.rows.for_each_run(tile_.row, tile_.rows, [&](const RowRun& run) {
      if (run.matrix_row >= 0)
        place(run.virtual_row - tile_.row, run.rows, run.matrix_row, tile_.col, at.ranks);
    });
  }

  void operator()(const Slots& at) const {
    std::int64_t row = grid_.rows_before(linear_);
    if (!at.bases.empty()) {
      const std::int64_t group = group_of(at.ends, linear_);
      row += at.bases[group] - grid_.rows_before(begin_of(at.ends, group));
    }
    place(0, tile_.rows, row, 0, at.ranks);
  }

  void operator()(const Subtiles& at) const {
    const std::int64_t group = group_of(at.ends, linear_);
    const std::int64_t first = grid_.rows_before(begin_of(at.ends, group));
    const std::int64_t part = (grid_.rows_before(at.ends[group]) - first) / at.parts;
    const std::int64_t within = (grid_.rows_before(linear_) - first) / at.parts;
    const std::int64_t rows = tile_.rows / at.parts;
    for (std::int64_t j = 0; j < at.parts; ++j)
      place(j * rows, rows, first + j * part + within, 0, slice_.rank);
  }

  void operator()(const Pools& at) const {
    const std::int64_t group = group_of(at.ends, linear_), begin = begin_of(at.ends, group);
    for_each_run(at.source, at.dest, at.first, [&](std::int64_t row, std::int64_t rows, std::int32_t dest) {
      const auto sent = [&](std::int64_t position) {
        return routed_rows_before(*routing_, grid_, at.source, dest, position, at.first);
      };
      const std::int64_t first = at.first + tile_.row;
      const std::int64_t in_tile = routing_->count_before(at.source, dest, first + row) -
                                   routing_->count_before(at.source, dest, first);
      const std::int64_t pool = at.dest < 0 ? group * routing_->experts() + dest : group;
      place(row, rows, at.bases[pool] + sent(linear_) - sent(begin) + in_tile, 0, slice_.rank);
    });
  }

  void operator()(const Returned& at) const {
    for (std::int64_t row = 0; row < tile_.rows; ++row) {
      const Routing::Row to = routing_->received_row(at.rank, tile_.row + row);
      place(row, 1, to.row, tile_.col, to.source);
    }
  }

  void operator()(const Routed& at) const {
    for_each_run(at.source, at.dest, 0, [&](std::int64_t row, std::int64_t rows, std::int32_t dest) {
      if (at.one_rank && routing_->rank_of(dest) != slice_.rank) return;
      const std::int64_t before = routing_->count_before(at.source, dest, tile_.row + row);
      if (at.dest < 0)
        place(row, rows, at.bases[dest] + before, tile_.col, routing_->rank_of(dest));
      else
        place(row, rows, at.bases[0] + before, tile_.col, slice_.rank);
    });
  }

  /// Only a run knows the pieces: steps that load by an index look it up themselves.
  void operator()(const Indexed&) const {}

  void operator()(const Owners& at) const {
    at.rows.for_each_run(tile_.row, tile_.rows, [&](RowRun run) {
      while (run.matrix_row >= 0 && run.rows > 0) {
        const std::int64_t owner = run.matrix_row / at.rows.stride, local = run.matrix_row % at.rows.stride;
        const std::int64_t rows = smaller(run.rows, at.rows.stride - local);
        place(run.virtual_row - tile_.row, rows, local, tile_.col, static_cast<std::int32_t>(owner));
        run = {run.virtual_row + rows, run.matrix_row + rows, run.rows - rows};
      }
    });
  }

 private:
  /// `row` and `col` count from the slice's corner.
  void place(std::int64_t tile_row, std::int64_t rows, std::int64_t row, std::int64_t col,
             std::int32_t rank) const {
    visit_(Piece{tile_row, rows, slice_.row + row, slice_.col + col, rank});
  }
  void place(std::int64_t tile_row, std::int64_t rows, std::int64_t row, std::int64_t col,
             const std::vector<std::int32_t>& ranks) const {
    if (ranks.empty()) place(tile_row, rows, row, col, slice_.rank);
    for (const std::int32_t rank : ranks) place(tile_row, rows, row, col, rank);
  }

  static std::int64_t begin_of(const std::vector<std::int64_t>& ends, std::int64_t group) {
    return group == 0 ? 0 : ends[group - 1];
  }

  /// Calls each(row, rows, dest) for the runs of the tile's rows with one destination, or only for the runs
  /// to `wanted` if that is not -1. Row 0 of the grid is row `first` of the source.
  template <class Each>
  void for_each_run(std::int32_t source, std::int32_t wanted, std::int64_t first, Each&& each) const {
    first += tile_.row;
    for (std::int64_t row = 0, rows = 0; row < tile_.rows; row += rows) {
      const std::int32_t dest = routing_->dest(source, first + row);
      rows = 1;
      while (row + rows < tile_.rows && routing_->dest(source, first + row + rows) == dest) ++rows;
      if (wanted < 0 || wanted == dest) each(row, rows, dest);
    }
  }

  const Slice& slice_;
  const TileGrid& grid_;
  const Routing* routing_;
  std::int64_t linear_;
  TileRect tile_;
  Visit& visit_;
};

}  // namespace placement

/// Calls visit(Piece) for the pieces of a tile that covers `rect`; see below.
template <class Visit>
void for_each_piece(const Placement& at, const TileGrid& grid, const Routing* routing, std::int64_t linear,
                    const TileRect& rect, Visit&& visit) {
  if (rect.rows == 0 || rect.cols == 0) return;
  std::visit(placement::Expansion(at.slice, grid, routing, linear, rect, visit), at.form);
}

/// Calls visit(Piece) for the pieces of the tile at position `linear`, in order of tile_row. If rows go to
/// several ranks, it visits each rank in turn. Phantom rows and rows for another rank than the placement's
/// `dest` have no piece. Neither have phantom tiles, and rows that are picked by an index. `routing` is read
/// only for Pools, Routed and Returned. `tile` is grid.tile(linear), where that is known.
template <class Visit>
void for_each_piece(const Placement& at, const TileGrid& grid, const Routing* routing, std::int64_t linear,
                    Tile tile, Visit&& visit) {
  for_each_piece(at, grid, routing, linear, grid.rect(tile), visit);
}
template <class Visit>
void for_each_piece(const Placement& at, const TileGrid& grid, const Routing* routing, std::int64_t linear,
                    Visit&& visit) {
  for_each_piece(at, grid, routing, linear, grid.tile(linear), visit);
}

/// A tile of a product: which rows and columns of the output it has, and which weight multiplies its rows.
struct ProductTile {
  TileRect rect{};                  ///< `row` counts as the placement of the output does
  const RowGroup* group = nullptr;  ///< of a grouped product
  std::int64_t in_group = 0;        ///< rows of the group before the tile

  /// Calls visit(RowRun) for the runs of A's rows that are rows [first, first + rows) of the tile, in order.
  /// Virtual rows count from rect.row.
  template <class Visit>
  void for_each_a_run(const Gemm& gemm, std::int64_t first, std::int64_t rows, Visit&& visit) const {
    if (group == nullptr) return gemm.a_rows.for_each_run(rect.row + first, rows, visit);
    visit(RowRun{rect.row + first, group->a_row + in_group + first, rows});
  }
};

/// Tiles along m of a group, padded to a multiple of `group_tiles`.
inline std::int64_t tiles_of_group(std::int64_t rows, std::int64_t tile_rows, std::int64_t group_tiles) {
  return ceil_div(rows, tile_rows * group_tiles) * group_tiles;
}

/// The tile of a product at an index of its grid.
inline ProductTile product_tile(const Gemm& gemm, Tile tile) {
  ProductTile found{gemm.grid.rect(tile)};
  if (gemm.groups.empty() || found.rect.rows == 0) return found;
  for (const RowGroup& group : gemm.groups) {
    const std::int64_t tiles = tiles_of_group(group.rows, gemm.grid.tile_rows, gemm.group_tiles);
    if (tile.m < tiles) {
      found.group = &group;
      found.in_group = tile.m * gemm.grid.tile_rows;
      found.rect.row = group.row + found.in_group;
      found.rect.rows = larger(smaller(gemm.grid.tile_rows, group.rows - found.in_group), 0);
      return found;
    }
    tile.m -= tiles;
  }
  found.rect.rows = 0;
  return found;
}

/// Virtual rows of a grouped product in tiles of `tile_rows` rows.
inline std::int64_t padded_rows(const std::vector<RowGroup>& groups, std::int64_t tile_rows,
                                std::int64_t group_tiles) {
  std::int64_t tiles = 0;
  for (const RowGroup& group : groups) tiles += tiles_of_group(group.rows, tile_rows, group_tiles);
  return tiles * tile_rows;
}

/// The slice of the weight that multiplies a group's rows.
inline Slice weight_of(const Gemm& gemm, const RowGroup& group) {
  const std::int64_t k = gemm.a.cols;
  const std::int64_t rows = gemm.transpose_b ? weight_cols(gemm) : k;
  Slice weight = gemm.b;
  weight.row += group.weight * rows;
  weight.rows = rows;
  return weight;
}

}  // namespace shingle
