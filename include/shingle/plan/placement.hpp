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

/// Calls visit(Piece) for the pieces of the tile at position `linear`, in order of tile_row. If rows go to
/// several ranks, it visits each rank in turn. Phantom rows and rows for another rank than the placement's
/// `dest` have no piece. Phantom tiles have no pieces. `routing` is read only for `pools` and `routed`.
template <class Visit>
void for_each_piece(const Placement& at, const TileGrid& grid, const Routing* routing, std::int64_t linear,
                    Visit&& visit_one) {
  const auto visit = [&](Piece piece) {
    if (at.kind != PlacementKind::owners && at.kind != PlacementKind::routed) piece.rank = at.slice.rank;
    if (at.ranks.empty()) return visit_one(piece);
    for (const std::int32_t rank : at.ranks) {
      piece.rank = rank;
      visit_one(piece);
    }
  };
  const TileRect rect = grid.rect(grid.tile(linear));
  if (rect.rows == 0 || rect.cols == 0) return;
  const std::int64_t col0 = at.slice.col;
  switch (at.kind) {
    case PlacementKind::matrix:
      at.rows.for_each_run(rect.row, rect.rows, [&](const RowRun& run) {
        if (run.matrix_row >= 0)
          visit(Piece{run.virtual_row - rect.row, run.rows, at.slice.row + run.matrix_row, col0 + rect.col});
      });
      return;
    case PlacementKind::owners:
      at.rows.for_each_run(rect.row, rect.rows, [&](RowRun run) {
        while (run.matrix_row >= 0 && run.rows > 0) {
          const std::int64_t owner = run.matrix_row / at.rows.stride, local = run.matrix_row % at.rows.stride;
          const std::int64_t rows = smaller(run.rows, at.rows.stride - local);
          visit(Piece{run.virtual_row - rect.row, rows, at.slice.row + local, col0 + rect.col,
                      static_cast<std::int32_t>(owner)});
          run = {run.virtual_row + rows, run.matrix_row + rows, run.rows - rows};
        }
      });
      return;
    case PlacementKind::slots: {
      std::int64_t row = grid.rows_before(linear);
      if (!at.bases.empty()) {
        const std::int64_t group = group_of(at.ends, linear);
        row += at.bases[group] - grid.rows_before(group == 0 ? 0 : at.ends[group - 1]);
      }
      visit(Piece{0, rect.rows, at.slice.row + row, col0});
      return;
    }
    case PlacementKind::subtiles: {
      const std::int64_t group = group_of(at.ends, linear);
      const std::int64_t first = grid.rows_before(group == 0 ? 0 : at.ends[group - 1]);
      const std::int64_t part = (grid.rows_before(at.ends[group]) - first) / at.parts;
      const std::int64_t within = (grid.rows_before(linear) - first) / at.parts;
      const std::int64_t rows = rect.rows / at.parts;
      for (std::int64_t j = 0; j < at.parts; ++j)
        visit(Piece{j * rows, rows, at.slice.row + first + j * part + within, col0});
      return;
    }
    case PlacementKind::pools:
    case PlacementKind::routed:
      for (std::int64_t i = 0; i < rect.rows;) {
        const std::int32_t dest = routing->dest(at.source, rect.row + i);
        std::int64_t run = 1;
        while (i + run < rect.rows && routing->dest(at.source, rect.row + i + run) == dest) ++run;
        if (at.dest < 0 || at.dest == dest) {
          const std::int64_t before = routing->count_before(at.source, dest, rect.row + i);
          if (at.kind == PlacementKind::routed) {
            const std::size_t base = at.dest < 0 ? static_cast<std::size_t>(dest) : 0;
            visit(Piece{i, run, at.slice.row + at.bases[base] + before, col0 + rect.col,
                        at.dest < 0 ? dest : at.slice.rank});
          } else {
            const std::int64_t group = group_of(at.ends, linear);
            const auto rows_to = [&](std::int64_t lo, std::int64_t hi) {
              const auto row = [&](std::int64_t tile) { return smaller(tile * grid.tile_rows, grid.rows); };
              return routing->count_before(at.source, dest, row(hi)) -
                     routing->count_before(at.source, dest, row(lo));
            };
            const auto sent = [&](std::int64_t position) {
              return grid.sum_before(position, rows_to, TileGrid::Count{});
            };
            const std::int64_t pool = at.dest < 0 ? group * routing->world() + dest : group;
            const std::int64_t in_tile = before - routing->count_before(at.source, dest, rect.row);
            visit(Piece{i, run,
                        at.slice.row + at.bases[pool] + sent(linear) -
                            sent(group == 0 ? 0 : at.ends[group - 1]) + in_tile,
                        col0});
          }
        }
        i += run;
      }
      return;
  }
}

}  // namespace shingle
