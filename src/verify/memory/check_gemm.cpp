// Operands of a GEMM: rows of A and columns of B that belong together, over the whole K.
#include "check.hpp"

#include <fmt/format.h>

#include "piece_count.hpp"
#include "shingle/plan/placement.hpp"

namespace shingle {

void MemoryCheck::gemm(const Gemm& step, const Segment& s, std::int32_t index) {
  if (step.epilogue.any() && !(step.epilogue == (step.sums.from.empty() ? rules_.product : rules_.result)))
    fail_content(s, "applies an epilogue that is not the problem's");
  const std::int64_t k = step.transpose_a ? step.a.rows : step.a.cols;
  if (rules_.k != 0 && k != rules_.k && !(rules_.chains && k == rules_.inner))
    fail_content(s, fmt::format("multiplies over {} of the K = {}", k, rules_.k));
  spend_items(step.grid, s.last - s.first);
  for (std::int64_t item = s.first; item < s.last; ++item)
    if (!step.grid.phantom(step.grid.tile(item))) gemm_tile(step, s, index, item);
}

/// The operand that a product needs as A, given its B. Also checks that the product covers its K. A second
/// product covers all inner columns of the first one, which has passed the epilogue.
Content::Of MemoryCheck::wanted_a(const Gemm& step, const Segment& s, Content::Of b) const {
  const bool second = b == Content::Of::down;
  const std::int64_t k = step.transpose_a ? step.a.rows : step.a.cols, all = second ? rules_.inner : rules_.k;
  if (all != 0 && k != all) fail_content(s, fmt::format("multiplies over {} of the K = {}", k, all));
  if (second && step.epilogue.any())
    fail_content(s, "applies the epilogue of the first product to the second");
  return second ? Content::Of::hidden : rules_.a;
}

const std::vector<MemoryCheck::TileRows>& MemoryCheck::read_a(const Gemm& step, const Segment& s,
                                                              std::int32_t index, const ProductTile& tile,
                                                              Content::Of wanted) {
  const TileRect& rect = tile.rect;
  std::vector<TileRows>& rows = a_tile_rows_;
  if (a_segment_ == index && a_row_ == rect.row && a_wanted_ == wanted) return rows;
  a_segment_ = index;
  a_row_ = rect.row;
  a_wanted_ = wanted;
  rows.clear();
  budget_.spend(Budget::expanded, runs_at_most(step.a_rows, rect.rows));
  const bool t = step.transpose_a;
  tile.for_each_a_run(step, 0, rect.rows, [&](const RowRun& run) {
    if (run.matrix_row < 0) return;
    const Place at =
        t ? piece_place(step.a, step.a.row, step.a.rows, step.a.col + run.matrix_row, run.rows, s.epoch)
          : piece_place(step.a, step.a.row + run.matrix_row, run.rows, step.a.col, step.a.cols, s.epoch);
    memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
      const std::int64_t k_offset = t ? c.row + step.a.row : c.col + step.a.col;
      const bool passed = c.of != Content::Of::hidden || !rules_.product.any() || c.done != 0;
      if (c.of != wanted || c.epoch != s.epoch || k_offset != 0 || t != rules_.transpose_a || !passed)
        fail_content(s,
                     fmt::format("reads {} ({}) as its rows of A", memory_.describe(at, cell), text_of(c)));
      const std::int64_t first = t ? cell.col : cell.row, count = t ? cell.cols : cell.rows;
      const std::int64_t start = t ? at.rect.col : at.rect.row;
      TileRows next{run.virtual_row - rect.row + first - start,
                    count,
                    first + (t ? c.col : c.row),
                    c.ranks,
                    c.value,
                    c.weight,
                    c.merged};
      // A cell may be cut along k. Its rows are then seen several times and must agree.
      budget_.spend(Budget::compared, static_cast<std::int64_t>(rows.size()));
      bool seen_before = false;
      for (TileRows& seen : rows) {
        if (next.tile_row >= seen.tile_row + seen.rows || seen.tile_row >= next.tile_row + next.rows)
          continue;
        if (seen.global_row - seen.tile_row != next.global_row - next.tile_row || seen.ranks != next.ranks ||
            seen.merged != next.merged)
          fail_content(s, fmt::format("multiplies parts of different rows of A as one row, in {}",
                                      memory_.describe(at, cell)));
        seen.value = values_.beside(seen.value, next.value, cell.col);
        seen_before = true;
      }
      if (seen_before) return;
      // Computed rows are not joined, because later parts along k may have different values.
      if (next.value == 0 && !rows.empty() && rows.back().tile_row + rows.back().rows == next.tile_row &&
          rows.back().ranks == next.ranks && rows.back().weight == next.weight &&
          rows.back().merged == next.merged && rows.back().global_row + rows.back().rows == next.global_row) {
        rows.back().rows += next.rows;
      } else {
        rows.push_back(next);
      }
    });
  });
  return rows;
}

/// Returns the weight (there may be two), the column of the product that the tile starts at, and the ranks
/// that own the weight.
Content MemoryCheck::read_b(const Gemm& step, const Segment& s, std::int32_t index, const ProductTile& tile) {
  Content result;
  const TileRect& rect = tile.rect;
  const Slice stored = tile.group == nullptr ? step.b : weight_of(step, *tile.group);
  const bool t = step.transpose_b, gated = step.epilogue.activation == Activation::swiglu;
  for (int half = 0; half < (gated ? 2 : 1); ++half) {
    // `up` follows `gate` in the slice of B, which may hold only some columns of each.
    const std::int64_t shift = half * (rules_.b_cols / 2);
    const std::int64_t col = rect.col + half * step.grid.cols;
    const Place at = t ? piece_place(stored, stored.row + col, rect.cols, stored.col, stored.cols, s.epoch)
                       : piece_place(stored, stored.row, stored.rows, stored.col + col, rect.cols, s.epoch);
    bool first = half == 0;
    memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
      // Row of the stack of weights that the slice begins at, and the weight there.
      const bool second = c.of == Content::Of::down;
      const std::int64_t top = c.row + stored.row;
      const std::int64_t depth = rules_.k == 0 ? stored.rows : second ? rules_.inner : rules_.k;
      const std::int64_t width = second ? rules_.out_cols : rules_.b_cols;
      // A workload has no width, as its B is never transposed: refused below.
      const std::int64_t rows = t ? larger(width, std::int64_t{1}) : depth;
      const std::int64_t number = tile.group != nullptr ? top / rows : 0, below = top - number * rows;
      const std::int64_t k_offset = t ? c.col + stored.col : below;
      const std::int64_t c_col = (t ? below + col : at.rect.col + c.col) - shift;
      const bool weight = c.of == Content::Of::b || c.of == Content::Of::down;
      if (!weight || c.epoch != s.epoch || k_offset != 0 || t != rules_.transpose_b ||
          (!first &&
           (c.of != result.of || c_col != result.col || c.ranks != result.ranks || number != result.weight)))
        fail_content(
            s, fmt::format("reads {} ({}) as its columns of B", memory_.describe(at, cell), text_of(c)));
      result.of = c.of;
      result.col = c_col;
      result.ranks = c.ranks;
      result.weight = static_cast<std::int32_t>(number);
      first = false;
    });
  }
  return result;
}

/// The product of some rows of a tile, in tile coordinates, before it is rounded.
Content MemoryCheck::product_of(const Gemm& step, const Segment& s, const TileRows& rows, const Content& b) {
  const bool first_of_two = rules_.chains && b.of == Content::Of::b, second = b.of == Content::Of::down;
  if (rows.ranks != 0 && rows.ranks != b.ranks) fail_content(s, "multiplies A of one rank with B of another");
  if (second && rows.weight != b.weight)
    fail_content(s, fmt::format("multiplies the first product of expert {} with the second weight of {}",
                                rows.weight, b.weight));
  const std::int64_t k = step.transpose_a ? step.a.rows : step.a.cols;
  Content c{first_of_two ? Content::Of::hidden : Content::Of::c,
            0,
            s.epoch,
            rows.global_row - rows.tile_row,
            b.col,
            b.ranks,
            rules_.k == 0 ? static_cast<std::int32_t>(smaller(k, max_extent)) : 0,
            values_.product(s.rank, s.lane, s.step, rows.value)};
  c.weight = b.weight;
  c.merged = rows.merged;
  return c;
}

/// A tile of the rank's own rows: other ranks' parts are added to its product before it is rounded.
void MemoryCheck::sum_tile(const Gemm& step, const Segment& s, std::int32_t index, std::int64_t item,
                           const std::vector<TileRows>& rows, const Content& b) {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  RegionMap<Content> tile(rect.rows, rect.cols, Content{}, &budget_);
  for (const TileRows& run : rows)
    tile.visit({run.tile_row, run.rows, 0, rect.cols},
               [&](const Rect&, Content& held) { held = product_of(step, s, run, b); });
  for (const Placement& from : step.sums.from) {
    budget_.spend(Budget::expanded, pieces_at_most(from, rect));
    add_part(from, step.grid, s, index, item, tile);
  }
  for (const Placement& to : step.sums.to) {
    budget_.spend(Budget::expanded, pieces_at_most(to, rect));
    store_tile(tile, step.grid, step.epilogue, step.bias, to, s, index, item);
  }
}

void MemoryCheck::gemm_tile(const Gemm& step, const Segment& s, std::int32_t index, std::int64_t item) {
  const ProductTile tile = product_tile(step, step.grid.tile(item));
  const TileRect& rect = tile.rect;
  if (rect.rows == 0) return;
  const Content b = read_b(step, s, index, tile);
  const std::vector<TileRows>& rows = read_a(step, s, index, tile, wanted_a(step, s, b.of));
  if (step.live.buffer >= 0) check_live(step, s, index, tile, rows);
  if (is_sum(step, rect.row)) return sum_tile(step, s, index, item, rows, b);
  // The epilogue of a step with sums is that of the sums.
  const Epilogue epilogue = step.sums.from.empty() ? step.epilogue : Epilogue{};
  const bool first_of_two = rules_.chains && b.of == Content::Of::b;
  if (epilogue.bias) {
    check_owner(s, check_vector(step.bias, Content::Of::bias, s, index, rect.col, rect.cols, b.col), b);
    if (epilogue.activation == Activation::swiglu)
      check_owner(s,
                  check_vector(step.bias, Content::Of::bias, s, index, step.grid.cols + rect.col, rect.cols,
                               rules_.b_cols / 2 + b.col),
                  b);
  }
  budget_.spend(Budget::expanded, pieces_at_most(step.out, rect));
  for_each_piece(step.out, step.grid, plan_.routing(), item, rect, [&](const Piece& piece) {
    budget_.spend(Budget::compared, static_cast<std::int64_t>(rows.size()));
    // Rows of the tile that are phantom in A but have a place in the output may hold any value.
    std::int64_t next = piece.tile_row;
    const auto phantom_until = [&](std::int64_t row) {
      if (next < row)
        memory_.write(piece_place(on_rank(step.out.slice, piece), piece.row + next - piece.tile_row,
                                  row - next, piece.col, rect.cols, s.epoch),
                      index, item, Content{});
    };
    for (const TileRows& run : rows) {
      const std::int64_t from = larger(run.tile_row, piece.tile_row);
      const std::int64_t to = smaller(run.tile_row + run.rows, piece.tile_row + piece.rows);
      if (from >= to) continue;
      phantom_until(from);
      next = to;
      const std::int64_t row = piece.row + from - piece.tile_row;
      Content c = product_of(step, s, run, b);
      c.row += from - row;
      c.col -= piece.col;
      c.value = values_.stored(c.value, dtype_of(step.out.slice));
      // A first product always passes the step's epilogue, because no other product uses it.
      c.done = first_of_two ? (epilogue.any() ? epilogue_done : 0) : check_epilogue(c, epilogue, s);
      memory_.write(
          piece_place(on_rank(step.out.slice, piece), row, to - from, piece.col, rect.cols, s.epoch), index,
          item, c);
    }
    phantom_until(piece.tile_row + piece.rows);
  });
}

}  // namespace shingle
