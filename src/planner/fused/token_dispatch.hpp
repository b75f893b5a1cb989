// Tokens on their way to the ranks of their experts, and the product that awaits them.
#pragma once

#include "fused.hpp"
#include "planner/common/experts.hpp"
#include "planner/common/slots.hpp"

namespace shingle::planner {

/// Copy engines move tokens, or workers push them.
///
/// A copy engine moves whole runs of rows. So a rank first packs its tokens by expert, which are then one run
/// for each peer. The product reads the rank's own rows where they were packed. Workers need no packing: they
/// store each row where the product reads it. With slots they push those that have a token.
///
/// Helpers push beside the product, whose tiles have rows of one rank. Without helpers, all workers push
/// before the product, in one pass, and a tile has rows of all ranks. With slots, tiles always have rows of
/// one rank, and rows arrive by source, so that those from a rank are consecutive.
class TokenDispatch {
 public:
  /// Declares the buffer that the product reads, and its counter. `slots`: null without a capacity.
  TokenDispatch(FusedBuilder& build, const Slots* slots);

  /// Lane of the workers that push a rank's tokens to other ranks.
  std::int32_t lane(int rank) const;
  /// Appends the steps that take a rank's tokens to their experts. With slots, the lane has awaited all
  /// ranks.
  void move(const Handshake& handshake, int rank) const;
  /// Appends a product of the rank's experts that multiplies its rows: all of an expert together, or own ones
  /// first, then others in the order of arrival. Output rows are ordered by expert.
  void feed(const Machine& machine, Gemm product) const;

 private:
  /// Tokens that one copy takes from a rank to another: those of some experts.
  struct Piece {
    int end = 0;                     ///< expert behind the last one, counted on the rank of the experts
    std::int64_t row = 0, rows = 0;  ///< in the order of the tokens between these ranks
  };

  bool by_engine() const { return build_.params().mover != Mover::store; }
  bool before_product() const { return !by_engine() && build_.helpers() == 0; }
  std::vector<Piece> pieces(int source, int dest) const;
  std::int32_t entry(int source, std::size_t piece) const;
  std::int64_t first_packed(int source, int expert) const;
  std::int64_t first_row(int dest, int source) const;
  TileGrid blocks(int rank) const;
  Placement place(int rank, int to) const;

  void move_by_engine(const Handshake& handshake, int rank) const;
  void move_by_rank(const Handshake& handshake, int rank) const;
  void move_before_product(const Handshake& handshake, int rank) const;
  Elementwise push(int rank, int to, std::int32_t workers) const;
  Gemm feed_all(const Machine& machine, Gemm product) const;
  Gemm feed_by_source(const Machine& machine, Gemm product) const;

  static constexpr int to_all = -1;

  FusedBuilder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Slots* slots_;
  std::int64_t most_pieces_ = 1;  // most pieces between two ranks
  std::int32_t rows_ = -1;        // buffer; by engine: a rank's packed tokens, then those of other ranks
  std::int32_t packed_ = -1;      // counter; by engine
  std::int32_t arrived_ = -1;     // counter, by source and piece
};

}  // namespace shingle::planner
