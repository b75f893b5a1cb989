// Reads of attention: queries, and the keys and values of all tokens that they see.
#include "check.hpp"

#include <fmt/format.h>

#include "piece_count.hpp"
#include "plan/steps.hpp"
#include "shingle/plan/placement.hpp"

namespace shingle {

/// Tokens that a tile sees and whose keys and values no tile of the run has read before.
TokenRange MemoryCheck::unread(std::int32_t index, std::int64_t col, const Seen& wanted) {
  if (seen_segment_ != index) seen_.clear();
  seen_segment_ = index;
  Seen& seen = seen_[col];
  const bool goes_on = seen.col == wanted.col && seen.ranks == wanted.ranks &&
                       seen.tokens.first <= wanted.tokens.first && wanted.tokens.first <= seen.tokens.end;
  if (!goes_on) seen = {wanted.col, wanted.ranks, {wanted.tokens.first, wanted.tokens.first}};
  const std::int64_t first = seen.tokens.end;
  seen.tokens.end = larger(first, wanted.tokens.end);
  return {first, seen.tokens.end};
}

/// Requires the queries to be the step's tokens, of one head of one rank. Requires K and V to be those of the
/// head's group on the same rank, for all tokens that the queries see.
void MemoryCheck::attend_tile(const Attend& step, const Segment& s, std::int32_t index, std::int64_t item) {
  const Attention& a = plan_.problem().attention;
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  budget_.spend(Budget::compared, static_cast<std::int64_t>(a.lengths.size()));
  budget_.spend(Budget::expanded, pieces_at_most(step.out, rect));
  const std::int64_t sharing = a.heads / a.kv_heads, token = step.first_token + rect.row;
  std::int64_t col = -1;  // column of Q in the problem that the tile starts at
  std::uint64_t ranks = 0;
  const Place queries =
      piece_place(step.q, step.q.row + rect.row, rect.rows, step.q.col + rect.col, rect.cols, s.epoch);
  memory_.read(queries, index, -1, [&](const Rect& cell, const Content& c) {
    const std::int64_t found = c.col + queries.rect.col;
    if (c.of != Content::Of::a || c.epoch != s.epoch || queries.rect.row + c.row != token ||
        found % a.head_dim != 0 || (col >= 0 && (found != col || c.ranks != ranks)))
      fail_content(s, fmt::format("reads {} ({}) as the queries of tokens {} to {}",
                                  memory_.describe(queries, cell), text_of(c), token, token + rect.rows));
    col = found;
    ranks = c.ranks;
  });
  const std::int64_t local = rect.col / a.head_dim / sharing * a.head_dim;
  const std::int64_t wanted = col / a.head_dim / sharing * a.head_dim;
  const TokenRange keys{step.first_key, step.first_key + step.keys.rows};
  const TokenRange seen =
      unread(index, local, {wanted, ranks, common(plan_.problem().seen_by(token, rect.rows), keys)});
  const auto check_seen = [&](const Slice& slice, Content::Of of) {
    const std::int64_t behind = slice.row - keys.first;  // a token's row in the buffer
    const Place at =
        piece_place(slice, behind + seen.first, seen.count(), slice.col + local, a.head_dim, s.epoch);
    memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
      if (c.of != of || c.epoch != s.epoch || c.ranks != ranks || behind + c.row != 0 ||
          at.rect.col + c.col != wanted)
        fail_content(
            s, fmt::format("reads {} ({}) as {} of tokens {} to {}", memory_.describe(at, cell), text_of(c),
                           of == Content::Of::keys ? "keys" : "values", seen.first, seen.end));
    });
  };
  check_seen(step.keys, Content::Of::keys);
  check_seen(step.values, Content::Of::values);
  store_attended(step, s, index, item, col, ranks);
}

/// Stores a tile that starts at column `col` of the problem's Q, on the ranks that own it.
void MemoryCheck::store_attended(const Attend& step, const Segment& s, std::int32_t index, std::int64_t item,
                                 std::int64_t col, std::uint64_t ranks) {
  const std::int64_t dim = plan_.problem().attention.head_dim;
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const std::int64_t token = step.first_token + rect.row;
  const ValueTable::Id product = values_.product(s.rank, s.lane, s.step, 0);
  const ValueTable::Id value = values_.stored(product, dtype_of(step.out.slice));
  const bool partial = is_part(plan_, step.lse);
  for_each_piece(step.out, step.grid, plan_.routing(), item, [&](const Piece& piece) {
    memory_.write(
        piece_place(on_rank(step.out.slice, piece), piece.row, piece.rows, piece.col, rect.cols, s.epoch),
        index, item,
        {partial ? Content::Of::partial : Content::Of::attended, 0, s.epoch,
         token + piece.tile_row - piece.row, col - piece.col, ranks, 0, value});
  });
  if (step.lse.buffer < 0) return;
  const KeySet keys({step.first_key, step.first_key + step.keys.rows});
  keys_of_.emplace(value, keys);
  keys_of_.emplace(product, keys);  // the value of the log-sum-exp
  const std::int64_t row = step.lse.row + rect.row, head = step.lse.col + rect.col / dim;
  memory_.write(piece_place(step.lse, row, rect.rows, head, 1, s.epoch), index, item,
                {Content::Of::lse, 0, s.epoch, token - row, col / dim - head, ranks, 0, product});
}

}  // namespace shingle
