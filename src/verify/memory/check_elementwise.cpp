// Results of a pass over tiles or complete rows: sums, epilogue, residual and norm.
#include "check.hpp"

#include <fmt/format.h>

#include "piece_count.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/print.hpp"

namespace shingle {

void MemoryCheck::elementwise(const Elementwise& step, const Segment& s, std::int32_t index) {
  if (step.epilogue.any() && !(step.epilogue == rules_.result))
    fail_content(s, "applies an epilogue that is not the problem's");
  if (step.norm.enabled && !(step.norm == rules_.norm))
    fail_content(s, "applies a norm that is not the problem's");
  spend_items(step.grid, s.last - s.first);
  for (std::int64_t item = s.first; item < s.last; ++item) {
    spend_pieces(step, item);
    if (row_wise(step))
      finish_rows(step, s, index, item);
    else if (step.grid.phantom(step.grid.tile(item)))
      continue;
    else if (step.factors != Slice{})
      combine_tile(step, s, index, item);
    else
      move_tile(step, s, index, item);
  }
}

/// Checks stores of an item over its own sources. An item goes row by row and stores each chunk of a row as
/// soon as it is computed. So a store may replace only the source element of the same place.
///
/// SwiGLU computes column c from columns c and c + half, so it never stores to the upper half before reading
/// it. Other items' reads are found as races.
void MemoryCheck::check_in_place(const Elementwise& step, const Segment& s, std::int64_t item) {
  const Routing* routing = plan_.routing();
  const bool wide = row_wise(step);
  const std::int64_t out_cols =
      step.epilogue.activation == Activation::swiglu ? step.grid.cols / 2 : step.grid.cols;
  const auto pieces_of = [&](const Placement& at, bool row_of_tiles, auto&& visit) {
    for (std::int64_t n = 0; n < (row_of_tiles ? step.grid.tiles_n() : 1); ++n) {
      const std::int64_t position = wide ? step.grid.linear({item, n}) : item;
      const TileRect rect = step.grid.rect(step.grid.tile(position));
      const std::int64_t cols = wide && !row_of_tiles ? out_cols : rect.cols;
      const std::int64_t first = wide ? rect.col : 0;
      for_each_piece(at, step.grid, routing, position,
                     [&](const Piece& piece) { visit(piece, piece.col - first, cols); });
    }
  };
  const auto compare = [&](const Placement& source, bool row_of_tiles, const Placement& target) {
    if (source.slice.buffer != target.slice.buffer) return;
    pieces_of(source, row_of_tiles, [&](const Piece& from, std::int64_t from_col, std::int64_t from_cols) {
      pieces_of(target, false, [&](const Piece& to, std::int64_t to_col, std::int64_t to_cols) {
        const bool apart = from.rank != to.rank || from.row >= to.row + to.rows ||
                           to.row >= from.row + from.rows || from.col >= to.col + to_cols ||
                           to.col >= from.col + from_cols;
        if (apart || (from.row - from.tile_row == to.row - to.tile_row && from_col == to_col)) return;
        throw CheckFailure{"race", fmt::format("{}, item {}, may overwrite rows of {} before it reads them",
                                               where(plan_, s.rank, s.lane, s.step), item,
                                               plan_.buffers[source.slice.buffer].name)};
      });
    });
  };
  const auto against = [&](const Placement& target) {
    for (const Placement& source : step.from) compare(source, wide, target);
    if (step.norm.residual) compare(step.residual, false, target);
  };
  against(step.to);
  if (step.norm.residual) against(step.sum);
}

/// Sum of equal places of disjoint sets of ranks. `c` was found in `cell`.
Content MemoryCheck::summed(Content sum, const Content& c, const Segment& s, const Place& at,
                            const Rect& cell) {
  if (is_gradient(sum.of)) return summed_gradients(sum, c, s, at, cell);
  if (!addable(sum, c))
    fail_content(s, fmt::format("adds {} ({}) to {}", memory_.describe(at, cell), text_of(c), text_of(sum)));
  sum.ranks |= c.ranks;
  sum.value = values_.sum(sum.value, c.value);
  return sum;
}

/// Calls take(Content& held, const Content& found, const Place&, const Rect& cell) for what a source holds of
/// a tile. `tile` and `found` count in tile coordinates.
template <class Take>
void MemoryCheck::read_source(const Placement& from, const TileGrid& grid, const Segment& s,
                              std::int32_t index, std::int64_t item, RegionMap<Content>& tile, Take&& take) {
  const TileRect rect = grid.rect(grid.tile(item));
  for_each_piece(from, grid, plan_.routing(), item, rect, [&](const Piece& piece) {
    const Place at =
        piece_place(on_rank(from.slice, piece), piece.row, piece.rows, piece.col, rect.cols, s.epoch);
    const auto visit = [&](const Rect& cell, Content c) {
      const std::int64_t down = piece.row - piece.tile_row;
      c.row += down;
      c.col += piece.col;
      tile.visit({cell.row - down, cell.rows, cell.col - piece.col, cell.cols},
                 [&](const Rect&, Content& held) { take(held, c, at, cell); });
    };
    memory_.read(at, index, item, visit, Input::parts);
  });
}

void MemoryCheck::add_part(const Placement& from, const TileGrid& grid, const Segment& s, std::int32_t index,
                           std::int64_t item, RegionMap<Content>& tile) {
  read_source(from, grid, s, index, item, tile,
              [&](Content& sum, const Content& c, const Place& at, const Rect& cell) {
                sum = summed(sum, c, s, at, cell);
              });
}

void MemoryCheck::move_tile(const Elementwise& step, const Segment& s, std::int32_t index,
                            std::int64_t item) {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  check_in_place(step, s, item);
  // Content of the tile, in tile coordinates: first the sum of the sources.
  RegionMap<Content> tile(rect.rows, rect.cols, Content{}, &budget_);
  for (const Placement& from : step.from) {
    const bool first = &from == &step.from.front();
    if (is_indexed(from)) {
      RegionMap<Content> picked = pick_rows(step, s, index, item, from);
      picked.visit({0, rect.rows, 0, rect.cols}, [&](const Rect& part, const Content& c) {
        tile.visit(part, [&](const Rect& cell, Content& sum) {
          sum = first ? c : summed(sum, c, s, place(from.slice, s.epoch), cell);
        });
      });
    } else if (first) {
      read_source(from, step.grid, s, index, item, tile,
                  [](Content& held, const Content& c, const Place&, const Rect&) { held = c; });
    } else {
      add_part(from, step.grid, s, index, item, tile);
    }
  }
  store_tile(tile, step.grid, step.epilogue, step.bias, step.to, s, index, item);
}

/// Applies the epilogue to a tile, in tile coordinates, and stores it.
void MemoryCheck::store_tile(RegionMap<Content>& tile, const TileGrid& grid, const Epilogue& epilogue,
                             const Slice& bias, const Placement& to, const Segment& s, std::int32_t index,
                             std::int64_t item) {
  const TileRect rect = grid.rect(grid.tile(item));
  bool bias_known = false;
  std::int64_t bias_col = 0;  // column of C that the tile starts at
  std::uint64_t bias_ranks = 0;
  for_each_piece(to, grid, plan_.routing(), item, rect, [&](const Piece& piece) {
    tile.visit({piece.tile_row, piece.rows, 0, rect.cols}, [&](const Rect& part, Content& held) {
      Content c = held;
      if (epilogue.any()) {
        if (c.of != Content::Of::c || (epilogue.bias && bias_known && c.col != bias_col))
          fail_content(
              s, fmt::format("applies the epilogue to {}; expected the product, at the columns of its bias",
                             text_of(c)));
        if (epilogue.bias && !bias_known)
          bias_ranks = check_vector(bias, Content::Of::bias, s, index, rect.col, rect.cols, bias_col = c.col);
        check_owner(s, bias_ranks, c);
        bias_known = true;
        c.done = check_epilogue(c, epilogue, s);
        c.value = values_.passed(c.value, c.done);
      }
      c.value = is_gradient(c.of) ? stored_gradient(c, dtype_of(to.slice))
                                  : values_.stored(c.value, dtype_of(to.slice));
      const std::int64_t row = piece.row + part.row - piece.tile_row, col = piece.col + part.col;
      c.row += part.row - row;
      c.col += part.col - col;
      if (c.of == Content::Of::nothing) c = Content{};
      memory_.write(piece_place(on_rank(to.slice, piece), row, part.rows, col, part.cols, s.epoch), index,
                    item, c);
    });
  });
}

void MemoryCheck::finish_rows(const Elementwise& step, const Segment& s, std::int32_t index,
                              std::int64_t tile_row) {
  const Problem& p = plan_.problem();  // a workload has neither a norm nor swiglu
  const Routing* routing = p.routing.get();
  const TileRect block = step.grid.rect({tile_row, 0});
  const std::int64_t complete = step.epilogue.activation == Activation::swiglu ? p.n : p.out_cols();
  if (step.grid.cols != complete)
    fail_content(s, fmt::format("works on {} columns; complete rows have {}", step.grid.cols, complete));
  check_in_place(step, s, tile_row);
  // Content of the block's rows, in tile coordinates, over all columns. All columns of a row must have one
  // logical row.
  RegionMap<Content> rows(block.rows, step.grid.cols, Content{}, &budget_);
  for (const Placement& from : step.from)
    for (std::int64_t n = 0; n < step.grid.tiles_n(); ++n) {
      const TileRect rect = step.grid.rect({tile_row, n});
      for_each_piece(from, step.grid, routing, step.grid.linear({tile_row, n}), [&](const Piece& piece) {
        const Place at = piece_place(from.slice, piece.row, piece.rows, piece.col, rect.cols, s.epoch);
        memory_.read(at, index, tile_row, [&](const Rect& cell, Content c) {
          const std::int64_t down = piece.row - piece.tile_row, right = piece.col - rect.col;
          c.row += down;
          c.col += right;
          rows.visit({cell.row - down, cell.rows, cell.col - right, cell.cols},
                     [&](const Rect&, Content& held) {
                       held = &from == &step.from.front() ? c : summed(held, c, s, at, cell);
                     });
        });
      });
    }
  const std::uint64_t bias_ranks =
      step.epilogue.bias ? check_vector(step.bias, Content::Of::bias, s, index, 0, step.grid.cols, 0) : 0;
  const std::uint64_t weight_ranks =
      step.norm.enabled
          ? check_vector(step.norm_weight, Content::Of::norm_weight, s, index, 0, p.out_cols(), 0)
          : 0;
  const std::int64_t first_tile = step.grid.linear({tile_row, 0});
  for_each_piece(step.to, step.grid, routing, first_tile, [&](const Piece& piece) {
    std::vector<std::pair<Rect, Content>> bands;
    rows.visit({piece.tile_row, piece.rows, 0, step.grid.cols}, [&](const Rect& part, Content& c) {
      if (c.of != Content::Of::c || c.epoch != s.epoch || c.col != 0)
        fail_content(s, fmt::format("reads {} as columns [{}, {}) of complete rows", text_of(c), part.col,
                                    part.col + part.cols));
      if (p.traits().reduces() && c.ranks != everyone_)
        fail_content(s, "works on complete rows before all ranks are summed");
      if (!bands.empty() && bands.back().first.row == part.row) {
        Content& row = bands.back().second;
        if (!same_elements(row, c)) fail_content(s, "reads parts of different rows as one row");
        row.value = values_.beside(row.value, c.value, part.col);
      } else {
        bands.emplace_back(part, c);
      }
    });
    for (const auto& [part, held] : bands) {
      Content c = held;
      if (step.norm.enabled && (c.done & (residual_done | norm_done)))
        fail_content(s, "normalises rows that are already normalised");
      c.done = check_epilogue(c, step.epilogue, s);
      check_owner(s, bias_ranks, c);
      check_owner(s, weight_ranks, c);
      const std::int64_t row = piece.row + part.row - piece.tile_row;
      if (step.norm.residual) {
        budget_.spend(Budget::expanded,
                      pieces_at_most(step.residual, block) + pieces_at_most(step.sum, block));
        std::int64_t added = 0;
        // `residual` and `sum` have the same layout as `to`; this finds the same rows in them.
        for_each_piece(step.residual, step.grid, routing, first_tile, [&](const Piece& other) {
          const std::int64_t from = larger(other.tile_row, part.row),
                             to = smaller(other.tile_row + other.rows, part.row + part.rows);
          if (from >= to) return;
          const std::int64_t at_row = other.row + from - other.tile_row;
          const Place at =
              piece_place(step.residual.slice, at_row, to - from, other.col, p.out_cols(), s.epoch);
          added += to - from;
          memory_.read(at, index, tile_row, [&](const Rect& cell, const Content& r) {
            check_owner(s, r.ranks, c);
            if (r.of != Content::Of::residual || r.epoch != s.epoch || r.col + other.col != 0 ||
                r.row + at_row != c.row + from)
              fail_content(s, fmt::format("adds {} ({}) as the residual, which belongs to other rows",
                                          memory_.describe(at, cell), text_of(r)));
          });
        });
        if (added != part.rows)
          fail_content(s, fmt::format("has a residual for {} of {} rows", added, part.rows));
        c.done |= residual_done;
        std::int64_t kept = 0;
        for_each_piece(step.sum, step.grid, routing, first_tile, [&](const Piece& other) {
          const std::int64_t from = larger(other.tile_row, part.row),
                             to = smaller(other.tile_row + other.rows, part.row + part.rows);
          if (from >= to) return;
          const std::int64_t at_row = other.row + from - other.tile_row;
          kept += to - from;
          Content sum = c;
          sum.row += from - at_row;
          sum.col = -other.col;
          sum.value = values_.stored(values_.passed(held.value, c.done), dtype_of(step.sum.slice));
          memory_.write(piece_place(step.sum.slice, at_row, to - from, other.col, p.out_cols(), s.epoch),
                        index, tile_row, sum);
        });
        if (kept != part.rows)
          fail_content(s, fmt::format("stores the sum with the residual for {} of {} rows", kept, part.rows));
      }
      if (step.norm.enabled) c.done |= norm_done;
      c.value = values_.stored(values_.passed(held.value, c.done), dtype_of(step.to.slice));
      c.row += part.row - row;
      c.col = -piece.col;
      memory_.write(
          piece_place(on_rank(step.to.slice, piece), row, part.rows, piece.col, p.out_cols(), s.epoch), index,
          tile_row, c);
    }
  });
}

}  // namespace shingle
