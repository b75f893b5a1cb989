// What mechanisms share whose ranks use each other's memory: the handshake at the begin of an epoch, and
// tiles that belong to one rank each.
#pragma once

#include <optional>
#include <vector>

#include "builder.hpp"

namespace shingle::planner {

/// Every rank tells its peers that it has begun the epoch: until then its user may still read the last
/// outputs or write the next inputs, and its own lanes may still use its buffers. Entry p on rank r: p has
/// begun.
class Handshake {
 public:
  /// Declares the counter and lets the compute lane of every rank say so, as its first steps.
  explicit Handshake(Builder& build);
  /// The lane goes on once `peer` has begun.
  void await(Builder& build, int rank, std::int32_t lane, int peer) const;
  void await_all(Builder& build, int rank, std::int32_t lane) const;

 private:
  std::int32_t begun_;
};

/// The tiles of a matrix whose rows are shared out: every shard is padded to whole tiles, so that no tile
/// holds rows of two ranks, and the shards follow each other from any of them on (FLUX's rank-rotated order).
///
/// A band is a run of a shard's positions that completes its rows before the next begins: what is told to
/// others, or awaited of them, goes by bands. Tiles that run down the columns complete no rows early; where
/// any part of a shard will do, bands are then of columns, and all shards pass through one band (or a stretch
/// of them) before the next, so that the first is complete everywhere while the others are still computed.
/// Interleaved, the shards take turns within a band, so that tiles for all ranks are under way at any time.
struct ShardTiles {
  enum class Bands : bool { of_rows, of_any };

  TileGrid inner;  ///< of one padded shard
  int shards = 1;
  std::int64_t shard = 0;  ///< rows of a full one
  std::int64_t limit = 0;  ///< rows of all
  std::int64_t bands = 1;
  std::int64_t band_rows = 0;  ///< of a shard; of bands of columns all
  std::int64_t band_cols = 0;  ///< 0: all
  std::int64_t band_positions = 0;
  /// Bands of columns of which all shards' tiles come before the next ones': shard after shard, in each band
  /// after band. Divides them.
  std::int64_t stretch = 1;
  /// Of a shard's rows, which take turns with those of the other shards; bands of rows are pieces then.
  std::int64_t pieces = 1;

  /// Tiles as the parameters, else the machine say; at most 8 bands a shard, so that a plan does not grow
  /// with its tiles.
  ShardTiles(int count, std::int64_t rows, std::int64_t cols, const Machine& machine, const Params& params,
             Bands of = Bands::of_rows);

  /// Makes stretches of bands of columns so long that one has at least so many tiles of a shard, if it can.
  void stretch_to(std::int64_t tiles);

  /// Tiles that hold the rows of all ranks, where these fit into one row of tiles: what such a product takes
  /// is the time in which B comes, and tiles of fewer rows would read it once for each rank.
  static std::optional<ShardTiles> together(const Problem& problem, std::int64_t cols, const Machine& machine,
                                            const Params& params, Bands of = Bands::of_rows);

  /// All shards, the first of which is `first`, upwards or downwards from there.
  TileGrid grid(int first, bool descending = false) const;
  /// The positions of one band of one shard: its place among the shards of grid(), its band, and where it
  /// ends.
  struct Run {
    int place = 0;
    std::int64_t band = 0;
    std::int64_t end = 0;
  };
  /// All of them in grid()'s order.
  std::vector<Run> runs() const;
  /// Virtual rows of grid() → rows of the matrix; stride = shard, so that R / stride is the owner.
  RowMap rows() const;
  /// Rows that there are in a shard.
  std::int64_t rows_of(int index) const;
  /// Positions at which the runs end.
  std::vector<std::int64_t> ends() const;
  /// Tiles of a band that hold output, phantom rows included.
  std::uint32_t tiles_in(std::int64_t band) const;
};

}  // namespace shingle::planner
