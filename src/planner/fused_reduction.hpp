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

  Builder& build_;
  const ShardTiles& tiles_;
  bool gathers_;           // sums go to all
  std::int64_t shard_;     // rows of a full one
  std::int32_t staging_;   // buffer: a region of `shard_` rows for each source
  std::int32_t stored_;    // counter, by band: tiles that have come from all ranks
  std::int32_t summed_;    // buffer: complete sums
  std::int32_t complete_;  // counter, by rank: tiles of its shard that are summed; -1: nobody asks
};

}  // namespace shingle::planner
