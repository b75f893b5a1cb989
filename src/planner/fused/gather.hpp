// Gather of A's shards in communication tiles, and the order in which a GEMM takes them.
#pragma once

#include "fused.hpp"

namespace shingle::planner {

/// Tiles of the product of the gathered matrix, with `cols` output columns.
ShardTiles gathered_tiles(const FusedBuilder& build, std::int64_t cols, const Machine& machine);

class Gather {
 public:
  /// Declares the gathered matrix and its counters. `tiles` are the tiles of the GEMM, and must outlive this
  /// object.
  Gather(FusedBuilder& build, const ShardTiles& tiles, const Machine& machine);

  /// Appends the steps that bring every shard to the rank. If shards are pushed: the rank's shard to all
  /// ranks.
  void move(const Handshake& handshake, int rank) const;
  /// Makes a GEMM that stores its product by rows multiply the gathered matrix, in order of arrival.
  void feed(int rank, Gemm& gemm) const;
  /// As feed(), if all rows are in one row of tiles: each tile awaits all rows.
  void feed_together(int rank, Gemm& gemm) const;
  /// As feed(), if blocks of rows are dealt to the ranks. `bands`: tiles of the product in the order of its
  /// rows.
  void feed_dealt(int rank, const ShardTiles& bands, Gemm& gemm) const;
  /// At the end of the compute lane: awaits that all ranks have fetched the rank's shard, so that it is the
  /// user's again.
  void release(int rank) const;

 private:
  bool by_engine() const { return build_.params().mover != Mover::store; }
  bool interleaved() const;
  /// The rank with the i-th shard to arrive at `rank`, and the rank that gets the shard of `rank` at the same
  /// time.
  int source(int rank, int i) const;
  int dest(int rank, int i) const;

  std::int64_t first(std::int64_t piece) const { return piece * comm_rows_; }
  std::int64_t rows(int shard, std::int64_t piece) const;
  std::int32_t entry(int source, std::int64_t piece) const;
  TileGrid items(int source) const;
  std::int64_t items_before(const TileGrid& items, std::int64_t piece) const;
  std::uint32_t arrivals(int rank, int source, std::int64_t piece) const;

  void send_piece(int rank, std::int32_t lane, int dest, std::int64_t piece) const;
  void move_by_engine(const Handshake& handshake, int rank) const;
  void move_by_workers(const Handshake& handshake, int rank) const;
  Elementwise pass(int source, int dest, std::int64_t piece, std::int64_t count) const;
  void push(int rank, std::int32_t lane, int source, int dest, std::int64_t piece, std::int64_t count) const;
  void feed_by_shards(int rank, Gemm& gemm) const;
  void feed_by_pieces(int rank, Gemm& gemm) const;

  FusedBuilder& build_;
  const ShardTiles& tiles_;
  TileGrid piece_;          // grid of a full communication tile
  std::int64_t comm_rows_;  // rows of a communication tile: whole bands
  std::int64_t pieces_;     // communication tiles of a full shard
  std::int32_t gathered_;   // buffer: the gathered matrix
  std::int32_t arrived_;    // counter, entry source · pieces + piece
  std::int32_t fetched_;  // counter, by rank: that rank has fetched all of this rank's shard; -1: not needed
};

}  // namespace shingle::planner
