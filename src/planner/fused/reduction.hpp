// Products summed where their rows belong: tiles go straight to the staging of the shard's owner, who sums
// the sources in rank order.
#pragma once

#include "fused.hpp"

namespace shingle::planner {

class ShardSums {
 public:
  /// Declares staging and counters. `tiles` are those of the GEMM and outlive this: of shards, or of all rows
  /// in one row of tiles.
  ShardSums(Builder& build, const ShardTiles& tiles);

  /// The GEMM that stores to the owners, who have begun; of `a`, where that is not the user's.
  void multiply(int rank, const Slice* a = nullptr) const;
  /// Every rank sums its shard; for allreduce it stores the sums on all.
  void sum(int rank) const;

 private:
  /// The shard that a rank computes first.
  int first(int rank) const;
  /// Stores a product of shards to their owners, those of one row of tiles to all of them.
  void store_by_shards(int rank, Gemm& gemm) const;
  void store_from_each(int rank, Gemm& gemm) const;
  /// Rows of a rank's shard, and the tiles in which they are summed.
  std::int64_t rows_of(int rank) const {
    return larger(smaller(build_.problem().m - rank * shard_, shard_), 0);
  }
  TileGrid sums_of(int rank) const;
  void fill(int rank) const;

  Builder& build_;
  const ShardTiles& tiles_;
  bool gathers_;           // sums go to all
  std::int64_t shard_;     // rows of a full one
  std::int32_t staging_;   // buffer: a region of `shard_` rows for each source
  std::int32_t stored_;    // counter, by band: tiles that have come from all ranks
  std::int32_t summed_;    // buffer: complete sums
  std::int32_t complete_;  // counter, by rank, and band if `fills_`: tiles that are summed; -1: nobody asks
  bool fills_;             // sums that come go on to the output
  std::int64_t parts_;     // entries of `complete_` a rank
  std::int32_t fillers_ = 0;  // of the helpers those that see to it
};

}  // namespace shingle::planner
