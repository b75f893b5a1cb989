// Sums of a token's products, one for each of its choices, with the choices' weights.
#include "check.hpp"

#include <fmt/format.h>

#include "shingle/plan/placement.hpp"

namespace shingle {

namespace {

/// A token, as its owner counts it.
struct Token {
  int owner;
  std::int64_t row;
};

Token token_at(const Problem& p, std::int64_t global) {
  int owner = 0;
  while (p.routing->global_base(owner + 1) <= global * p.choices()) ++owner;
  return {owner, global - p.routing->global_base(owner) / p.choices()};
}

}  // namespace

/// Reads the weights of the tile's rows. Returns the token, of those of all ranks, that the first row is.
std::int64_t MemoryCheck::first_weighed(const Elementwise& step, const Segment& s, std::int32_t index,
                                        std::int64_t item) {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const Slice& f = step.factors;
  const Place at = piece_place(f, f.row + rect.row, rect.rows, f.col, f.cols, s.epoch);
  std::int64_t first = -1;
  memory_.read(at, index, item, [&](const Rect& cell, const Content& c) {
    const std::int64_t row = at.rect.row + c.row;
    if (c.of != Content::Of::topk_weights || c.epoch != s.epoch || at.rect.col + c.col != 0 ||
        (first >= 0 && row != first))
      fail_content(s, fmt::format("weighs by {} ({}); expected the weights of consecutive tokens",
                                  memory_.describe(at, cell), text_of(c)));
    first = row;
  });
  return first;
}

/// Reads one choice of the tile's tokens, which are `first` and those behind it: the product of the choice's
/// row with the weight of its expert, from column `first_col` on; -1: of none yet.
void MemoryCheck::take_choice(const Elementwise& step, const Segment& s, std::int32_t index,
                              std::int64_t item, std::size_t choice, std::int64_t first,
                              std::int64_t& first_col, RegionMap<ValueTable::Id>& sums) {
  const Problem& p = plan_.problem();
  const Routing& routing = *p.routing;
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const Placement& from = step.from[choice];
  if (is_indexed(from)) return take_picked(step, s, index, item, choice, first, first_col, sums);
  std::int64_t rows = 0;
  for_each_piece(from, step.grid, &routing, item, [&](const Piece& piece) {
    rows += piece.rows;
    const Place at = piece_place(from.slice, piece.row, piece.rows, piece.col, rect.cols, s.epoch);
    memory_.read(at, index, item, [&](const Rect& cell, const Content& c) {
      if (first_col < 0) first_col = piece.col + c.col;
      for (std::int64_t row = cell.row; row < cell.row + cell.rows; ++row) {
        budget_.spend(Budget::compared, 2 * p.world);
        const std::int64_t in_tile = row - piece.row + piece.tile_row;
        const auto [owner, token] = token_at(p, first + in_tile);
        const std::int64_t routed =
            static_cast<std::int64_t>(choice) * (routing.rows(owner) / p.choices()) + token;
        const int expert = routing.dest(owner, routed);
        // With a slice of every expert, a rank sums its own products.
        const int rank = routing.receives(s.rank, expert) ? s.rank : routing.rank_of(expert);
        // Rows count as those of A: tokens, or rows by expert.
        const std::int64_t wanted = p.traits().takes_tokens()
                                        ? first + in_tile
                                        : p.a_runs(rank).front().global_row +
                                              routing.receive_base(expert, owner) +
                                              routing.count_before(owner, expert, routed);
        if (c.of != Content::Of::c || c.epoch != s.epoch || c.done != 0 || c.merged ||
            row + c.row != wanted || piece.col + c.col != first_col || c.ranks != std::uint64_t{1} << rank ||
            c.weight != routing.weight_of(expert))
          fail_content(
              s,
              fmt::format("takes {} ({}) as choice {} of token {} of source {}, which is row {} from column "
                          "{} on with expert {}",
                          memory_.describe(at, cell), text_of(c), choice, token, owner, wanted, first_col,
                          expert));
        sums.visit({in_tile, 1, cell.col - piece.col, cell.cols},
                   [&](const Rect&, ValueTable::Id& sum) { sum = values_.merged(sum, c.value); });
      }
    });
  });
  if (rows != rect.rows)
    fail_content(s, fmt::format("has choice {} of {} of its {} tokens", choice, rows, rect.rows));
}

void MemoryCheck::combine_tile(const Elementwise& step, const Segment& s, std::int32_t index,
                               std::int64_t item) {
  const Problem& p = plan_.problem();
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  if (!p.traits().combines() || static_cast<std::int64_t>(step.from.size()) != p.experts.topk)
    fail_content(s,
                 fmt::format("weighs {} sources, but the tokens of the problem do not have as many choices",
                             step.from.size()));
  check_in_place(step, s, item);
  const std::int64_t first = first_weighed(step, s, index, item);
  std::int64_t first_col = -1;  // of the result, in the tile: that of the first choice's products
  RegionMap<ValueTable::Id> sums(rect.rows, rect.cols, ValueTable::Id{}, &budget_);
  for (std::size_t choice = 0; choice < step.from.size(); ++choice)
    take_choice(step, s, index, item, choice, first, first_col, sums);
  // The sum is complete, or one rank's part of it.
  const std::uint64_t ranks = p.traits().reduces() ? std::uint64_t{1} << s.rank : 0;
  for_each_piece(step.to, step.grid, p.routing.get(), item, [&](const Piece& piece) {
    sums.visit({piece.tile_row, piece.rows, 0, rect.cols}, [&](const Rect& part, ValueTable::Id sum) {
      const std::int64_t row = piece.row + part.row - piece.tile_row, col = piece.col + part.col;
      Content c{Content::Of::c, combined_done, s.epoch, first + part.row - row, first_col + part.col - col,
                ranks};
      c.value = values_.stored(sum, dtype_of(step.to.slice));
      memory_.write(piece_place(on_rank(step.to.slice, piece), row, part.rows, col, part.cols, s.epoch),
                    index, item, c);
    });
  });
}

}  // namespace shingle
