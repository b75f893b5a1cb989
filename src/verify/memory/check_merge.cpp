// Merges of partial attentions: every row takes each key that it sees exactly once.
#include "check.hpp"

#include <fmt/format.h>

#include "piece_count.hpp"
#include "plan/steps.hpp"
#include "shingle/plan/placement.hpp"

namespace shingle {

/// Adds a part to the parts before it: the same queries and heads, other keys. `c` was found in `cell`, and
/// counts rows and columns from the tile's corner.
void MemoryCheck::take_part(const Place& at, const Rect& cell, const Content& c, Merged& merged,
                            const Segment& s) {
  const Content& before = merged.content;
  const bool first = before.of == Content::Of::nothing;
  const auto fail = [&](std::string_view why) {
    fail_content(s, fmt::format("merges {} ({}), {}", memory_.describe(at, cell), text_of(c), why));
  };
  const auto known = keys_of_.find(c.value);
  if (c.of != Content::Of::partial || c.epoch != s.epoch || known == keys_of_.end())
    fail("which is no part of an attention");
  if (!first && (c.row != before.row || c.col != before.col || c.ranks != before.ranks))
    fail("which is of other queries or heads than the parts before it");
  const KeySet& keys = known->second;
  budget_.spend(Budget::compared, merged.keys.size() + keys.size());
  if (!merged.keys.add(keys)) fail("with keys that a part before it has too");
  const ValueTable::Id value = values_.merged(before.value, c.value);
  merged.content = c;
  merged.content.value = value;
  merged.last = c.value;
}

/// Requires the log-sum-exp of the last part: of the same queries and heads, and made by the same step.
void MemoryCheck::take_lse(const Place& at, const Rect& cell, const Content& c, Merged& merged, DType part,
                           const Segment& s) {
  const std::int64_t dim = plan_.problem().attention.head_dim;
  if (c.of != Content::Of::lse || c.epoch != s.epoch || c.row != merged.content.row ||
      c.col * dim != merged.content.col || c.ranks != merged.content.ranks ||
      values_.stored(c.value, part) != merged.last)
    fail_content(s, fmt::format("weighs a part with {} ({}), which is not its log-sum-exp",
                                memory_.describe(at, cell), text_of(c)));
}

/// Reads the parts of a tile into `tile`, in tile coordinates.
void MemoryCheck::read_parts(const Merge& step, const Segment& s, std::int32_t index, std::int64_t item,
                             RegionMap<Merged>& tile) {
  const std::int64_t dim = plan_.problem().attention.head_dim;
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  for (const Merge::Part& part : step.parts) {
    const TokenRange rows = common({rect.row, rect.row + rect.rows}, {part.row, part.row + part.value.rows});
    if (rows.empty()) continue;
    // Distance from a row of the tile to the row in a buffer.
    const auto down = [&](const Slice& slice) { return slice.row + rect.row - part.row; };
    const auto place = [&](const Slice& slice, std::int64_t col, std::int64_t cols) {
      return piece_place(slice, down(slice) + rows.first - rect.row, rows.count(), col, cols, s.epoch);
    };
    const Slice &value = part.value, &lse = part.lse;
    const std::int64_t col = value.col + rect.col, head = lse.col + rect.col / dim;
    const Place from = place(value, col, rect.cols), weights = place(lse, head, rect.cols / dim);
    memory_.read(from, index, item, [&](const Rect& cell, Content c) {
      c.row += down(value), c.col += col;
      tile.visit({cell.row - down(value), cell.rows, cell.col - col, cell.cols},
                 [&](const Rect&, Merged& merged) { take_part(from, cell, c, merged, s); });
    });
    memory_.read(weights, index, item, [&](const Rect& cell, Content c) {
      c.row += down(lse), c.col += head;
      tile.visit(
          {cell.row - down(lse), cell.rows, (cell.col - head) * dim, cell.cols * dim},
          [&](const Rect&, Merged& merged) { take_lse(weights, cell, c, merged, dtype_of(value), s); });
    });
  }
}

void MemoryCheck::merge_tile(const Merge& step, const Segment& s, std::int32_t index, std::int64_t item) {
  const Problem& p = plan_.problem();
  const std::int64_t dim = p.attention.head_dim;
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  budget_.spend(Budget::compared, static_cast<std::int64_t>(p.attention.lengths.size()));
  budget_.spend(Budget::expanded,
                pieces_at_most(step.to, rect) + static_cast<std::int64_t>(step.parts.size()));
  RegionMap<Merged> tile(rect.rows, rect.cols, Merged{}, &budget_);
  read_parts(step, s, index, item, tile);
  const bool partial = is_part(plan_, step.lse);
  for_each_piece(step.to, step.grid, plan_.routing(), item, [&](const Piece& piece) {
    tile.visit({piece.tile_row, piece.rows, 0, rect.cols}, [&](const Rect& at, const Merged& merged) {
      const std::int64_t row = piece.row + at.row - piece.tile_row, col = piece.col + at.col;
      Content c = merged.content;
      const std::int64_t first = c.row + at.row;
      if (!partial && !merged.keys.holds(p.seen_by(first, at.rows)))
        fail_content(s, fmt::format("leaves out keys that the queries {} to {} see", first, first + at.rows));
      c.of = partial ? Content::Of::partial : Content::Of::attended;
      c.row += at.row - row, c.col += at.col - col;
      c.value = values_.stored(c.value, dtype_of(step.to.slice));
      if (partial) keys_of_.emplace(c.value, merged.keys);
      memory_.write(piece_place(on_rank(step.to.slice, piece), row, at.rows, col, at.cols, s.epoch), index,
                    item, c);
    });
  });
  if (step.lse.buffer < 0) return;
  tile.visit({0, rect.rows, 0, rect.cols}, [&](const Rect& at, const Merged& merged) {
    const std::int64_t row = step.lse.row + rect.row + at.row,
                       head = step.lse.col + (rect.col + at.col) / dim;
    Content c = merged.content;
    c.of = Content::Of::lse;
    c.row += at.row - row;
    c.col = (c.col + at.col) / dim - head;
    keys_of_.emplace(c.value, merged.keys);
    memory_.write(piece_place(step.lse, row, at.rows, head, at.cols / dim, s.epoch), index, item, c);
  });
}

}  // namespace shingle
