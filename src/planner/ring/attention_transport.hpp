// allgather+attention around a ring: how keys and values travel.
#pragma once

#include <memory>

#include "attention_cut.hpp"
#include "direct_copies.hpp"

namespace shingle::planner {

/// Brings pieces of K and V to ranks. A rank has room for two pieces: the one that it attends to, and the one
/// that arrives.
class KeyTransport {
 public:
  static constexpr std::int64_t room = 2;

  /// `kind`: of the counter of arrivals.
  KeyTransport(RingBuilder& build, const Timetable& timetable, CounterKind kind);
  virtual ~KeyTransport() = default;
  KeyTransport(const KeyTransport&) = delete;
  KeyTransport& operator=(const KeyTransport&) = delete;

  /// Appends what a rank does to send in a turn, and to receive.
  virtual void move(int rank, std::int64_t turn) = 0;
  /// A rank has attended to its n-th piece, whose place may be overwritten.
  virtual void release(int rank, std::int64_t n) = 0;
  /// The compute lane of a rank waits for its n-th piece.
  void await(int rank, std::int64_t n) const { build_.await(rank, compute_lane, arrived_, n); }

  /// Places of a rank's n-th piece.
  Slice keys(int rank, std::int64_t n) const { return place(keys_, rank, n); }
  Slice values(int rank, std::int64_t n) const { return place(values_, rank, n); }

 protected:
  /// True if another piece will take the place of a rank's n-th.
  bool has_next(int rank, std::int64_t n) const { return n + room < timetable_.count(rank); }
  /// A piece in the memory of its owner.
  Slice owned(std::int32_t buffer, const KeyPiece& piece) const {
    return build_.rows(buffer, piece.owner, piece.row, piece.tokens.count());
  }

  RingBuilder& build_;
  const Timetable& timetable_;
  std::int32_t arrived_;  ///< counter, by piece

 private:
  Slice place(std::int32_t buffer, int rank, std::int64_t n) const {
    const KeyPiece& piece = timetable_.received(rank, timetable_.turn(rank, n));
    return build_.rows(buffer, rank, n % room * timetable_.longest(), piece.tokens.count());
  }

  std::int32_t keys_, values_;  // buffers
};

std::unique_ptr<KeyTransport> transport_by_messages(RingBuilder& build, const Timetable& timetable);
std::unique_ptr<KeyTransport> transport_by_copies(RingBuilder& build, const Timetable& timetable,
                                                  DirectCopies& copies);

}  // namespace shingle::planner
