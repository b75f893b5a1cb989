// Sums of products at the owners of their rows. Tiles are stored directly to the owner's staging buffer; the
// owner sums the sources in rank order.
#pragma once

#include "fused.hpp"

namespace shingle::planner {

class ShardSums {
 public:
  /// Declares staging and counters. `tiles` are the tiles of the GEMM, and must outlive this object. They are
  /// tiles of shards, or of all rows in one row of tiles.
  ShardSums(FusedBuilder& build, const ShardTiles& tiles);

  /// Appends the GEMM of `a` that stores to the owners. These must have begun the epoch.
  void multiply(int rank, const Slice& a) const;
  /// Appends the sum of the rank's shard, unless the GEMM sums. For allreduce, sums go to all ranks.
  void sum(int rank) const;

 private:
  /// The shard that a rank computes first.
  int first(int rank) const;
  /// Stores a product to the owners of its rows: by shards, or from one row of tiles that has rows of every
  /// owner.
  TileNotify stored_by_shards(int rank) const;
  /// Entry of `stored_` for a run. Own tiles await a turn at a time: the next one may come behind them.
  std::int32_t stored_entry(const ShardTiles::Run& run) const;
  /// Makes sums of the rank's own tiles.
  void sum_in_epilogue(int rank, Gemm& gemm) const;
  /// Tiles of a rank's sums in one band, or in all.
  std::uint32_t tiles_of_sums(int rank, std::int64_t band) const;
  std::uint32_t tiles_of_sums(int rank) const;
  /// Rows of a rank's shard.
  std::int64_t rows_of(int rank) const {
    return larger(smaller(build_.problem().m - rank * shard_, shard_), 0);
  }
  TileGrid sums_of(int rank) const;
  void sum_in_pass(int rank) const;
  void fill(int rank) const;

  FusedBuilder& build_;
  const ShardTiles& tiles_;
  bool gathers_;          // true if sums go to all ranks
  std::int64_t shard_;    // rows of a full shard
  bool in_epilogue_;      // true if the products of own tiles are summed, not stored
  std::int32_t staging_;  // buffer: a region of `shard_` rows for each source
  std::int32_t stored_;   // counter, by band, or by turn of a band: tiles that ranks have stored
  std::int32_t sums_;     // buffer: complete sums
  std::int32_t summed_;   // counter, by rank, and by band if `fills_`: tiles that are summed; -1: not needed
  bool fills_;            // true if sums that arrive are copied to the output
  std::int64_t parts_;    // entries of `summed_` for each rank
  std::int32_t fillers_ = 0;  // number of helpers that copy sums to the output
};

}  // namespace shingle::planner
