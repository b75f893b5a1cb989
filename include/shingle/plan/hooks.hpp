// The hooks of a tiled step: where its tiles lie, what they await, and whom they notify.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "shingle/grid/row_map.hpp"
#include "shingle/plan/memory.hpp"

namespace shingle {

/// How the rows of a tile map to a buffer: the `route` hook of a store, and the same map for a load. Tiles
/// form groups by their position in the grid's order; `ends` lists the position at which each group ends.
namespace placement {

/// Rows go through `rows`; columns stay.
struct Matrix {
  RowMap rows{};                      ///< virtual row of the grid → row of the slice
  std::vector<std::int32_t> ranks{};  ///< ranks that each hold the same rows; empty: slice.rank
  bool operator==(const Matrix&) const = default;
};

/// Tiles are stacked in execution order in one column, tile_cols wide.
struct Slots {
  std::vector<std::int64_t> ends{};   ///< used with `bases`
  std::vector<std::int64_t> bases{};  ///< by group: its first row; empty: no gaps between groups
  std::vector<std::int32_t> ranks{};  ///< ranks that each hold the same rows; empty: slice.rank
  bool operator==(const Slots&) const = default;
};

/// As Slots without bases, but each group holds rank 0's part of every tile first, then rank 1's, …
struct Subtiles {
  std::vector<std::int64_t> ends{};
  std::int32_t parts = 1;  ///< number of equal row parts of a tile
  bool operator==(const Subtiles&) const = default;
};

/// Each group has one pool for each destination. A pool holds runs of rows in execution order, tile_cols
/// wide.
struct Pools {
  std::vector<std::int64_t> ends{};
  std::int32_t source = -1;           ///< source rank of the rows, for the problem's routing
  std::int32_t dest = -1;             ///< destination of the rows; -1: all destinations
  std::vector<std::int64_t> bases{};  ///< first row of each pool, by group, then by destination
  std::int64_t first = 0;             ///< row v of the grid is row first + v of the source
  bool operator==(const Pools&) const = default;
};

/// Rows for `dest`, compacted: row i lies at the number of such rows before it. Columns stay.
struct Routed {
  std::int32_t source = -1;  ///< source rank of the rows, for the problem's routing
  std::int32_t dest = -1;    ///< destination of the rows; -1: every row lies on the rank of its destination
  std::vector<std::int64_t> bases{};  ///< first row, by destination; one entry if `dest` is given
  bool one_rank = false;              ///< with dest -1: only rows whose destination is of slice.rank
  bool operator==(const Routed&) const = default;
};

/// Rows that a rank received go back to their sources: row i of them lies on its source at its row there, as
/// the problem's routing counts them. Columns stay.
struct Returned {
  std::int32_t rank = -1;  ///< the rank that received the rows
  bool operator==(const Returned&) const = default;
};

/// Ranks share a matrix, `rows.stride` rows each: row R = rows(v) lies on rank R / stride at row R mod
/// stride. Columns stay.
struct Owners {
  RowMap rows{};  ///< virtual row of the grid → row of the shared matrix
  bool operator==(const Owners&) const = default;
};

/// Rows picked by an index, a number for each row of the grid: row v lies at row index(v) of the slice; -1:
/// nowhere. Only for loads of a pass that is not row-wise. An AssignSlots or a MergeSlots step makes the
/// index, so pieces are known at run time only.
struct Indexed {
  Slice index{};  ///< i32, one column, in the memory of the step's rank
  bool operator==(const Indexed&) const = default;
};

}  // namespace placement

/// Where a step loads or stores the rows of its tiles. A store may go to remote memory. It goes to one other
/// rank (slice.rank), to each of `ranks`, to every row's owner, to every row's destination (Routed with dest
/// -1), or back to every row's source (Returned). The slice then gives buffer, first row and columns on each
/// of these ranks.
struct Placement {
  using Form = std::variant<placement::Matrix, placement::Slots, placement::Subtiles, placement::Pools,
                            placement::Routed, placement::Owners, placement::Returned, placement::Indexed>;
  /// Names of the forms, by index.
  static constexpr std::string_view names[] = {"matrix", "slots",  "subtiles", "pools",
                                               "routed", "owners", "returned", "indexed"};
  static_assert(std::size(names) == std::variant_size_v<Form>);

  Slice slice{};
  Form form{};  ///< counts rows and columns from the slice's corner

  bool operator==(const Placement&) const = default;
};

/// Gate: before a tile's input is read, the step awaits one entry of a counter on its own rank. The tile's
/// position selects the group, and the group selects the entry. Phantom tiles await nothing.
struct TileGate {
  std::int32_t counter = -1;
  std::vector<std::int64_t> ends;       ///< position at which each group ends
  std::vector<std::uint32_t> targets;   ///< by group; 0: nothing to await
  std::vector<std::int32_t> entries{};  ///< by group; empty: group g awaits entry g
  /// True: of the input, only what the tile adds to its product (TileSums) awaits the gate.
  bool of_parts = false;

  std::int32_t entry(std::int64_t group) const {
    return entries.empty() ? static_cast<std::int32_t>(group) : entries[static_cast<std::size_t>(group)];
  }
  bool operator==(const TileGate&) const = default;
};

/// After a tile's output is visible, the step adds one to an entry of a counter on each of `ranks`. The
/// tile's group selects the entry. Phantom tiles add nothing.
struct TileNotify {
  std::int32_t counter = -1;
  std::vector<std::int32_t> ranks;
  std::vector<std::int64_t> ends;
  std::vector<std::int32_t> entries{};  ///< by group, -1: adds nothing; empty: group g adds to entry g
  std::vector<std::int32_t> owners{};   ///< by group: the one rank to add on; empty: all of `ranks`

  std::int32_t entry(std::int64_t group) const {
    return entries.empty() ? static_cast<std::int32_t>(group) : entries[static_cast<std::size_t>(group)];
  }
  /// Calls visit(rank) for every rank on which a group adds.
  template <class Visit>
  void for_each_rank(std::int64_t group, Visit&& visit) const {
    if (entry(group) < 0) return;
    if (!owners.empty()) return visit(owners[static_cast<std::size_t>(group)]);
    for (const std::int32_t rank : ranks) visit(rank);
  }
  bool operator==(const TileNotify&) const = default;
};

/// Workers (SMs or cores) of a step: it needs `least` to make progress and takes `most` at most (0: all free
/// ones). The residency proof counts a gated step with `most`, because the step keeps its workers while it
/// waits.
struct Resources {
  std::int32_t least = 0;
  std::int32_t most = 0;
  bool operator==(const Resources&) const = default;
};

/// True if rows are picked by an index.
bool is_indexed(const Placement& at);
/// All ranks whose memory the pieces of a placement may lie in.
std::vector<std::int32_t> ranks_of(const Placement& at, int world);
/// Ranks that each hold the same rows. Empty if the placement names none.
std::span<const std::int32_t> replicas(const Placement& at);
/// The placement on the first of its replicas only.
Placement first_replica(Placement at);
/// True if tiles are stacked in one column (Slots, Subtiles, Pools). Otherwise columns stay.
bool stacks_tiles(const Placement& at);
/// Group of a position, given the end of each group.
std::int64_t group_of(const std::vector<std::int64_t>& ends, std::int64_t position);

}  // namespace shingle
