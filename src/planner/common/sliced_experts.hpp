// Tensor-parallel experts: every rank has the rows of all sources by expert. With slots, internal buffers
// have them source by source, so that the slots of a source are consecutive.
#pragma once

#include <vector>

#include "experts.hpp"
#include "slots.hpp"

namespace shingle::planner {

/// Consecutive rows by expert that have a turn. They begin where those before them end.
struct TurnRows {
  std::int64_t end = 0;
  std::int32_t turn = 0;
};

/// Rows by expert, cut between tiles. A tile that has rows of several turns has the last of them, or the
/// first.
struct TurnGroups {
  std::vector<RowGroup> groups;     ///< in order of their turns
  std::vector<std::int32_t> turns;  ///< by group
};
enum class TurnOf : bool { last, first };
/// `unit`: rows of a tile, or of a cluster of tiles. `rows`: those of all experts.
TurnGroups groups_in_turn(const Routing& routing, const std::vector<TurnRows>& rows, std::int64_t unit,
                          TurnOf of);
/// As above, where sources take turns, from `first` on.
TurnGroups groups_in_turn(const Routing& routing, int first, std::int64_t unit, TurnOf of);

/// The groups of a product with slots whose operands and places are set: one for each source and expert.
/// `turns`: by source, in the order of their tokens. In a turn, tiles of an expert follow each other and
/// share its weight.
TurnGroups slots_in_turn(const Builder& build, const Gemm& product, const std::vector<std::int32_t>& turns);

/// Rows of a source, from `first` on, among the rows by expert of all sources. The grid has one column of
/// tiles, which may begin with any row of tiles and go around.
Placement sorted_rows(const Problem& problem, int source, std::int64_t first, const TileGrid& grid,
                      const Slice& sorted);

// With `slots` (else null), passes find tokens and products by them.

/// The pass that stores a source's tokens among the rows by expert, once for each choice.
Elementwise sort_tokens(const Builder& build, const Slots* slots, int source, const Slice& tokens,
                        const Slice& sorted);
/// The pass that stores some tokens of a source, from `first` on, for one choice.
Elementwise sort_choice(const Builder& build, int source, std::int64_t first, std::int64_t choice,
                        const Slice& tokens, const Slice& sorted);
/// The pass that sums the choices of a source's tokens, from `first` on (with slots: all), from products by
/// expert.
Elementwise combine_sorted(const Builder& build, const Slots* slots, int source, const Slice& products,
                           const Slice& factors, const Slice& to, std::int64_t first = 0);

/// A grouped product whose tiles come in turns.
struct TurnProduct {
  Gemm gemm;
  std::vector<std::int32_t> turns;  ///< by group of rows
};
/// Rows [first, end) by expert.
struct ExpertRows {
  std::int64_t first = 0, end = 0;
};
/// The turns that have tiles with some of these rows, the last first. `rows` ascend.
std::vector<std::int32_t> turns_of(const TurnProduct& product, const std::vector<ExpertRows>& rows);

}  // namespace shingle::planner
