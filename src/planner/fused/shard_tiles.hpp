// Tiles of a matrix with sharded rows: every tile belongs to one rank.
#pragma once

#include <optional>
#include <vector>

#include "planner/common/builder.hpp"

namespace shingle::planner {

/// Tiles of a matrix with sharded rows. Every shard is padded to whole tiles, so that no tile holds rows of
/// two ranks. The shards follow one another from any of them on (FLUX's rank-rotated order).
///
/// A band is a run of a shard's positions that completes its rows before the next band begins. Signals and
/// waits are by band.
///
/// Tiles in column order complete no rows early. If any part of a shard will do, bands are then columns. All
/// shards go through one band, or a stretch of bands, before the next. So the first band is complete on all
/// ranks while the others are computed.
///
/// With interleaved order, the shards take turns within a band, so that tiles for all ranks are in flight at
/// any time.
struct ShardTiles {
  enum class Bands : bool { of_rows, of_any };

  TileGrid inner;  ///< grid of one padded shard
  int shards = 1;
  std::int64_t shard = 0;  ///< rows of a full shard
  std::int64_t limit = 0;  ///< rows of all shards
  std::int64_t bands = 1;
  std::int64_t band_rows = 0;  ///< rows of a band; with bands of columns: all rows of a shard
  std::int64_t band_cols = 0;  ///< columns of a band; 0: all
  std::int64_t band_positions = 0;
  /// Number of consecutive bands of columns in a stretch. All shards' tiles of a stretch come before the next
  /// stretch; within it they go shard by shard, and band by band. It divides `bands`.
  std::int64_t stretch = 1;
  /// Pieces of a shard's rows that take turns with those of other shards. With bands of rows, bands are
  /// pieces.
  std::int64_t pieces = 1;

  /// The tile size comes from the params, else from the machine. A shard has at most 8 bands, so that the
  /// size of a plan does not grow with the number of tiles. If owners sum in the epilogue, all bands are one
  /// stretch: own tiles then come long after the other ranks' tiles that they await.
  ShardTiles(int count, std::int64_t rows, std::int64_t cols, const Machine& machine,
             const FusedParams& params, Bands of = Bands::of_rows);

  /// Makes a stretch long enough to have at least `tiles` tiles of a shard, if possible.
  void stretch_to(std::int64_t tiles);

  /// Tiles that hold the rows of all ranks, if these fit into one row of tiles. Such a product takes as long
  /// as reading B; tiles of fewer rows would read B once for each rank.
  static std::optional<ShardTiles> together(const Problem& problem, std::int64_t cols, const Machine& machine,
                                            const FusedParams& params, Bands of = Bands::of_rows);

  /// The grid of all shards from shard `first` on, in ascending or descending order.
  TileGrid grid(int first, bool descending = false) const;
  /// Consecutive positions of one band of one shard: index of the shard in the order of grid(), the band, the
  /// turn of the shard within the band, and the end position.
  struct Run {
    int place = 0;
    std::int64_t band = 0;
    std::int64_t turn = 0;
    std::int64_t end = 0;
  };
  /// Turns that a shard takes within a band.
  std::int64_t turns() const { return band_cols > 0 ? pieces : 1; }
  /// All runs, in the order of grid().
  std::vector<Run> runs() const;
  /// Virtual rows of grid() → rows of the matrix. stride = shard, so that R / stride is the owner.
  RowMap rows() const;
  /// Number of rows in a shard.
  std::int64_t rows_of(int index) const;
  /// Positions at which the runs end.
  std::vector<std::int64_t> ends() const;
  /// Number of tiles of a band, or of one turn of it, that hold output. Tiles of phantom rows are included.
  std::uint32_t tiles_in(std::int64_t band) const;
  std::uint32_t tiles_in(std::int64_t band, std::int64_t turn) const;
};

}  // namespace shingle::planner
