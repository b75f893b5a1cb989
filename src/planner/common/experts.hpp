// Grouped products: rows of experts, and the passes that take tokens there and back.
#pragma once

#include <vector>

#include "builder.hpp"

namespace shingle::planner {

/// Tokens of a rank; with slots the most that it may have.
std::int64_t tokens_of(const Problem& problem, int rank);

/// The rows that a rank receives, ordered by expert in A and in the output, as a group for each expert. With
/// a capacity there is one for each expert and source, which has a count of its own. Empty groups are left
/// out, here and below.
std::vector<RowGroup> groups_by_expert(const Routing& routing, int rank);
/// The rows that a rank receives, a group for each source and expert. Groups are ordered by source, then by
/// expert, and so are rows of A, as an all-to-all delivers them. Rows of the output are ordered by expert,
/// then by source.
std::vector<RowGroup> groups_by_source(const Routing& routing, int rank);
/// The same with the order of A and that of the output exchanged: rows by expert are stored by source.
std::vector<RowGroup> groups_to_source(const Routing& routing, int rank);

/// Runs of positions of a grouped product whose tiles have the same key.
struct PositionRuns {
  std::vector<std::int64_t> ends;
  std::vector<std::int32_t> keys;
};
/// `keys`: one for each group, none if no group has rows. Phantom tiles belong to the run before them.
PositionRuns runs_by(const Gemm& product, const std::vector<std::int32_t>& keys);
/// Makes the tiles of a grouped product await the entry of their key, where its target is not 0. `keys`: as
/// in runs_by().
void await_by_key(Gemm& product, const std::vector<std::int32_t>& keys, std::int32_t counter,
                  const std::vector<std::uint32_t>& targets);
/// Makes the tiles of a grouped product count in the entry of their key, one of `entries`. Returns their
/// numbers by key.
std::vector<std::uint32_t> count_by_key(Gemm& product, const std::vector<std::int32_t>& keys,
                                        std::int32_t counter, std::int64_t entries);
/// Order of the tiles of a grouped product, unless one is asked for. All columns of some rows of tiles come
/// before the next rows, so rows that arrive later are multiplied later, and these tiles share the weights
/// that are read.
TileOrder order_of_groups(const Machine& machine, const TileOrder& asked);
/// Rows of a tile of a grouped product, or of a cluster of them.
std::int64_t unit_rows(const Machine& machine, const TileParams& asked, const Epilogue& epilogue);
/// Makes `product` a grouped one, in tiles that are asked for, else in the machine's.
Gemm grouped(const Builder& build, const Machine& machine, const TileParams& asked, Gemm product,
             std::vector<RowGroup> groups);
/// As above, of all rows of buffer `a`.
Gemm grouped(const Builder& build, const Machine& machine, const TileParams& asked, Gemm product,
             std::int32_t a, std::vector<RowGroup> groups);

/// Placement of a rank's routed rows in its tokens: choice j of token i is row j · tokens + i.
Placement rows_of_tokens(const Problem& problem, int rank, const Slice& tokens);
/// The pass that sums the choices of the tokens of a grid with the weights in `factors`. Without places in
/// `from`: these are to be set, one for each choice.
Elementwise combine(const TileGrid& grid, const Slice& factors, const Slice& to);
/// A rank's routed rows of a choice, in a slice that has them by expert.
Placement choice_by_expert(const Problem& problem, int rank, std::int64_t choice, const TileGrid& grid,
                           const Slice& from);

}  // namespace shingle::planner
