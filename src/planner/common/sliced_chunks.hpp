// Tensor-parallel experts whose tokens travel in chunks: what `chunked` multiplies chunk by chunk, and
// `signal` in one product.
#pragma once

#include <optional>
#include <vector>

#include "sliced_experts.hpp"

namespace shingle::planner {

/// The tokens of all ranks in chunks, the buffers that hold them, and the messages that move them.
///
/// Ranks take turns: turn t of rank r has the tokens of rank r + t. Own tokens come first, because they need
/// no link. A chunk has consecutive tokens in this order.
///
/// Rows by expert are cut between tiles only, so chunks add no padding. A tile with rows of several chunks
/// belongs to the one that arrives last. Sums leave in the opposite order, own tokens last. The rows of a
/// chunk's tokens then lie in its own tiles and in those of later chunks, which are multiplied before.
///
/// With slots, where a token goes is known at run time only. So chunks have all tokens of a rank, or none,
/// and tiles have rows of one rank.
class SlicedChunks {
 public:
  /// Tokens [first, first + rows) of a source.
  struct Piece {
    int source = 0;
    std::int64_t first = 0;
    std::int64_t rows = 0;
  };

  /// Chunks that have about these shares of the tokens, which add up to at most 2^31. With slots they add up
  /// to the number of ranks. `tile`: of the products.
  SlicedChunks(Builder& build, const Machine& machine, const TileParams& tile,
               const std::vector<std::int64_t>& shares);

  int chunks() const { return static_cast<int>(begins_.size()) - 1; }
  /// True if a chunk has tokens of other ranks.
  bool travels(int chunk) const {
    return p_.world * begins_[static_cast<std::size_t>(chunk + 1)] > begins_.back();
  }
  /// The tokens of a chunk, in their order. Empty pieces are left out.
  std::vector<Piece> pieces(int rank, int chunk) const;

  /// With slots: assigns those of a rank's tokens, and copies what it sends, of which the user's matrices may
  /// have fewer rows. Comes before all else.
  void begin(int rank) const;
  /// Sends a rank's tokens to all ranks, chunk by chunk, and then its weights. Each adds to its counter.
  /// Slots go before tokens; without tokens to send, with the weights.
  void gather(int rank) const;
  /// True if slots come with the weights, which the product then awaits.
  bool slots_with_weights() const { return slots_ && !p_.traits().before; }
  /// Stores the counts of slots for the user, if there is such an output, when all tokens have been
  /// multiplied.
  void return_counts(int rank) const;
  /// Returns the sums of a chunk's tokens to their ranks.
  void give_back(int rank, int chunk) const;

  /// The passes that store tokens among the rows by expert.
  std::vector<Elementwise> sort(int rank, const Piece& piece) const;
  /// The products of chunks [first, end), without hooks. Turns of the one that takes tokens are chunks. Turns
  /// of the one that gives sums count chunks from the last on. Without rows there are none.
  TurnProduct first_product(int rank, int first, int end) const;
  TurnProduct last_product(int rank, int first, int end) const;
  int turn_of_last(int chunk) const { return chunks() - 1 - chunk; }
  /// The pass that sums the choices of tokens.
  Elementwise combine(int rank, const Piece& piece) const;
  /// The rows by expert of tokens.
  std::vector<ExpertRows> rows_of(const Piece& piece) const;
  /// Sums a rank's tokens over ranks, in rank order, when the communicate lane has all sums.
  void sum(int rank) const;

  /// Counters. Entry c of `arrived` and `combined` is for chunk c; the planner adds to `combined`.
  std::int32_t arrived = -1, weights_arrived = -1, combined = -1;

 private:
  int after(int rank, int turn) const { return (rank + turn) % p_.world; }
  /// First token of a chunk among those that a source has in a turn.
  std::int64_t first_token(int source, int turn, int chunk) const;
  Piece piece_of(int source, int turn, int chunk) const;
  Piece all_of(int source) const { return {source, 0, tokens_of(p_, source)}; }
  /// Tokens in a buffer of `rank` that has those of all ranks.
  Slice at(std::int32_t buffer, int rank, const Piece& piece) const;
  /// What a rank has of the sums of an owner's tokens, in the memory of the owner.
  Slice part_of(int holder, const Piece& piece) const;
  /// Messages to and from all other ranks.
  struct Messages {
    std::vector<Exchange::Message> sends, receives;
  };
  void add_slots(int rank, Messages& messages) const;
  void exchange(int rank, Messages messages) const;
  const Slots* slots() const { return slots_ ? &*slots_ : nullptr; }
  /// Groups of a product, with turns that are chunks, or count chunks from the last on.
  TurnGroups groups(const Gemm& product, TurnOf of) const;
  /// The rows by expert, with such turns.
  std::vector<TurnRows> rows_in_chunks(int rank, TurnOf of) const;
  TurnProduct in_turns(Gemm product, std::int32_t a, TurnOf of, int first, int end) const;

  Builder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  const TileParams tile_;
  std::optional<Slots> slots_;
  std::vector<std::int64_t> begins_{0};  // shares before each chunk; last the sum of all
  // Buffers. `gathered_`, `weights_`, `sums_` and `parts_` have a part of `m` rows for each rank.
  std::int32_t gathered_ = -1, sorted_ = -1, hidden_ = -1, weights_ = -1, products_ = -1, sums_ = -1,
               parts_ = -1;
  std::int32_t returned_ = -1, placed_ = -1;  // counters
};

}  // namespace shingle::planner
