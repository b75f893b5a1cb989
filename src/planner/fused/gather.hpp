// Shards of A on their way to the ranks that multiply them, in communication tiles, and the order in which a
// GEMM takes them.
#pragma once

#include "fused.hpp"

namespace shingle::planner {

/// Tiles of the product of the gathered matrix, of `cols` output columns.
ShardTiles gathered_tiles(const Builder& build, std::int64_t cols, const Machine& machine);

class Gather {
 public:
  /// Declares the gathered matrix and its counters. `tiles` are those of the GEMM and outlive this.
  Gather(Builder& build, const ShardTiles& tiles, const Machine& machine);

  /// The steps that bring every shard to the rank (or, pushed, the rank's to everyone).
  void move(const Handshake& handshake, int rank) const;
  /// Lets a GEMM that stores its product by rows multiply the gathered matrix, in the order in which it
  /// comes.
  void feed(int rank, Gemm& gemm) const;
  /// The same where all rows are in one row of tiles, which await all of them.
  void feed_together(int rank, Gemm& gemm) const;
  /// The rank's own shard is the user's again once everybody has fetched it: the end of the compute lane.
  void release(int rank) const;

 private:
  bool by_engine() const { return build_.params().mover == Mover::copy_engine; }
  bool interleaved() const;
  /// The rank whose shard is the i-th to come to a rank, and the one that a rank's own goes to at the same
  /// time.
  int source(int rank, int i) const;
  int dest(int rank, int i) const;

  std::int64_t first(std::int64_t piece) const { return piece * comm_rows_; }
  std::int64_t rows(int shard, std::int64_t piece) const;
  std::int32_t entry(int source, std::int64_t piece) const;
  TileGrid items(int source) const;
  std::int64_t items_before(const TileGrid& items, std::int64_t piece) const;
  std::uint32_t arrivals(int rank, int source, std::int64_t piece) const;

  void move_piece(int rank, std::int32_t lane, int source, int dest, std::int64_t piece) const;
  void move_by_engine(const Handshake& handshake, int rank) const;
  void move_by_workers(const Handshake& handshake, int rank) const;
  Elementwise pass(int source, int dest, std::int64_t piece, std::int64_t count) const;
  void push(int rank, std::int32_t lane, int source, int dest, std::int64_t piece, std::int64_t count) const;
  void feed_by_shards(int rank, Gemm& gemm) const;
  void feed_by_pieces(int rank, Gemm& gemm) const;

  Builder& build_;
  const ShardTiles& tiles_;
  TileGrid piece_;          // of the tiles of a full communication tile
  std::int64_t comm_rows_;  // of a communication tile: whole bands
  std::int64_t pieces_;     // of a full shard
  std::int32_t gathered_;   // buffer
  std::int32_t arrived_;    // counter, entry source · pieces + piece
  std::int32_t fetched_;    // counter, by rank: it has all of this one's shard; -1: nobody asks
};

}  // namespace shingle::planner
