// Products summed where their rows belong: tiles go straight to the staging of the shard's owner, who sums
// the sources in rank order.
#pragma once

#include "fused.hpp"

namespace shingle::planner {

class ShardSums {
 public:
  /// Declares staging and counters. `tiles` are those of the GEMM and outlive this.
  ShardSums(Builder& build, const ShardTiles& tiles);

  /// The GEMM that stores to the owners, who have begun; of `a`, where that is not the user's.
  void multiply(int rank, const Slice* a = nullptr) const;
  /// Every rank sums its shard; for allreduce it stores the sums on all.
  void sum(int rank) const;

 private:
  Builder& build_;
  const ShardTiles& tiles_;
  bool gathers_;           // sums go to all
  std::int32_t staging_;   // buffer: a region of `tiles.shard` rows for each source
  std::int32_t stored_;    // counter, by band: tiles that have come from all ranks
  std::int32_t summed_;    // buffer: complete sums
  std::int32_t complete_;  // counter, by rank: tiles of its shard that are summed; -1: nobody asks
};

}  // namespace shingle::planner
