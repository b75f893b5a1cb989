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
  /// Appends the copies of a rank's parts to their owners, band by band as they are computed, if copy engines
  /// move parts.
  void send(const Handshake& handshake, int rank) const;
  /// Appends the sum of the rank's shard, unless the GEMM sums. For allreduce, sums go to all ranks.
  void sum(int rank) const;

 private:
  /// The shard that a rank computes first.
  int first(int rank) const;
  /// Stores a product to the owners of its rows: by shards, or from one row of tiles that has rows of every
  /// owner.
  TileNotify stored_by_shards(int rank) const;
  /// Counts the tiles of a rank's product that copy engines send on, and own ones that a pass adds.
  TileNotify computed_by_shards(int rank) const;
  /// Gates of own tiles, or of a pass: the parts of all other ranks. `ends` are those of runs of `bands`, -1:
  /// of a run that awaits nothing.
  std::vector<TileGate> gates_of_copies(int rank, const std::vector<std::int64_t>& ends,
                                        const std::vector<std::int64_t>& bands, bool of_parts) const;
  /// Entry of `stored_` for a run. Own tiles await a turn at a time: the next one may come behind them.
  std::int32_t stored_entry(const ShardTiles::Run& run) const;
  /// Makes sums of the rank's own tiles.
  void sum_in_epilogue(int rank, Gemm& gemm) const;
  /// Tiles of a rank's sums in one band, or in all.
  std::uint32_t tiles_of_sums(int rank, std::int64_t band) const;
  std::uint32_t tiles_of_sums(int rank) const;
  /// Rows of a band of an owner's shard.
  std::int64_t rows_of_band(int owner, std::int64_t band) const {
    return larger(smaller(rows_of(owner) - band * tiles_.band_rows, tiles_.band_rows), 0);
  }
  std::int32_t entry(int of, std::int64_t band) const {
    return static_cast<std::int32_t>(of * tiles_.bands + band);
  }
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
  bool by_engine_;        // true if copy engines move parts
  std::int32_t staging_;  // buffer: a region of `shard_` rows for each source
  std::int32_t stored_;   // counter, by band, or by turn of a band: tiles that ranks have stored. By source
                         // and band if copy engines do: bands that have arrived
  std::int32_t parts_of_all_ = -1;  // buffer: the product, for copy engines to send; -1: not needed
  std::int32_t computed_ = -1;      // counter, by owner and band: its tiles
  std::int32_t sums_;               // buffer: complete sums
  std::int32_t summed_;  // counter, by rank, and by band if `fills_`: tiles that are summed; -1: not needed
  bool fills_;           // true if sums that arrive are copied to the output
  std::int64_t parts_;   // entries of `summed_` for each rank
  std::int32_t fillers_ = 0;  // number of helpers that copy sums to the output
};

}  // namespace shingle::planner
