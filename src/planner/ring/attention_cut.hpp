// allgather+attention around a ring: which keys travel when.
#pragma once

#include <vector>

#include "ring.hpp"

namespace shingle::planner {

/// Consecutive tokens' keys and values of one rank.
struct KeyPiece {
  int owner = 0;
  std::int64_t row = 0;  ///< of the owner's K and V
  TokenRange tokens{};

  bool empty() const { return tokens.empty(); }
};

/// The order in which pieces travel, the same on all ranks. In a turn every rank sends over one distance, so
/// no rank receives from two. A rank sends only the tokens that a query of the receiver sees.
class Timetable {
 public:
  /// A shard has one or two runs of consecutive tokens. Each is cut into the plan's slices.
  explicit Timetable(const RingBuilder& build);

  std::int64_t turns() const { return (world_ - 1) * pieces_; }
  int sender(int rank, std::int64_t turn) const { return (rank + world_ - distance(turn)) % world_; }
  int receiver(int rank, std::int64_t turn) const { return (rank + distance(turn)) % world_; }
  /// What a rank receives in a turn; may be empty.
  const KeyPiece& received(int rank, std::int64_t turn) const { return at(rank, turn).piece; }
  const KeyPiece& sent(int rank, std::int64_t turn) const { return received(receiver(rank, turn), turn); }
  /// Number of pieces that a rank has received before a turn.
  std::int64_t before(int rank, std::int64_t turn) const { return at(rank, turn).before; }
  /// Number of pieces that a rank receives in all.
  std::int64_t count(int rank) const { return static_cast<std::int64_t>(turns_of(rank).size()); }
  /// The turn of a rank's n-th piece.
  std::int64_t turn(int rank, std::int64_t n) const { return turns_of(rank)[static_cast<std::size_t>(n)]; }
  std::int64_t most_count() const;
  /// Rows of the longest piece.
  std::int64_t longest() const { return longest_; }

 private:
  struct Arrival {
    KeyPiece piece;
    std::int64_t before;
  };
  int distance(std::int64_t turn) const { return static_cast<int>(1 + turn / pieces_); }
  const Arrival& at(int rank, std::int64_t turn) const {
    return arrivals_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(turn)];
  }
  const std::vector<std::int64_t>& turns_of(int rank) const {
    return received_in_[static_cast<std::size_t>(rank)];
  }

  int world_;
  std::int64_t pieces_ = 1;  ///< of the rank that has most
  std::int64_t longest_ = 0;
  std::vector<std::vector<Arrival>> arrivals_;          ///< by rank, by turn
  std::vector<std::vector<std::int64_t>> received_in_;  ///< by rank: turns in which it receives
};

}  // namespace shingle::planner
