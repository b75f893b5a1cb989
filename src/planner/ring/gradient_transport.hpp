// attention-backward around a ring: how parts of the gradients of keys and values return to their owners.
#pragma once

#include <memory>
#include <vector>

#include "attention_transport.hpp"

namespace shingle::planner {

/// The parts that a rank computes for others, piece by piece in the order of its keys, and those that others
/// compute for it, in the order of turns: its arrivals. A rank has room for two pieces that it sends, and for
/// four arrivals.
class GradientTransport {
 public:
  static constexpr std::int64_t room = KeyTransport::room;
  static constexpr std::int64_t slots = 4;

  /// `kind`: of the counters of arrivals and of what was sent.
  GradientTransport(RingBuilder& build, const Timetable& timetable, CounterKind kind);
  virtual ~GradientTransport() = default;
  GradientTransport(const GradientTransport&) = delete;
  GradientTransport& operator=(const GradientTransport&) = delete;

  /// Appends what a rank does to send the parts of the piece that it received in a turn, and to receive parts
  /// of the piece that it sent.
  virtual void move(int rank, std::int64_t turn) = 0;
  /// The places of an arrival may be overwritten.
  virtual void release(int rank, std::int64_t arrival) = 0;

  /// Number of parts that arrive at a rank before a turn, and in all.
  std::int64_t before(int rank, std::int64_t turn) const {
    return before_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(turn)];
  }
  std::int64_t count(int rank) const { return before(rank, timetable_.turns()); }

  /// The compute lane waits until the place of a rank's n-th piece is free.
  void await_room(int rank, std::int64_t n) const {
    if (n >= room) build_.await(rank, compute_lane, sent_, n - room);
  }
  /// The compute lane has stored the parts of a rank's n-th piece.
  void notify_computed(int rank, std::int64_t n) const { build_.notify(rank, compute_lane, computed_, n); }
  void await_arrival(int rank, std::int64_t arrival) const {
    build_.await(rank, compute_lane, returned_, arrival);
  }

  /// Places of the parts of the n-th piece, and of an arrival of `rows` rows.
  Slice keys(int rank, std::int64_t n) const { return place(keys_out_, rank, n); }
  Slice values(int rank, std::int64_t n) const { return place(values_out_, rank, n); }
  Slice arrived_keys(int rank, std::int64_t arrival, std::int64_t rows) const {
    return build_.rows(keys_in_, rank, arrival % slots * timetable_.longest(), rows);
  }
  Slice arrived_values(int rank, std::int64_t arrival, std::int64_t rows) const {
    return build_.rows(values_in_, rank, arrival % slots * timetable_.longest(), rows);
  }

 protected:
  /// True if other parts will take the place of the n-th piece's, or of an arrival.
  bool has_next_piece(int rank, std::int64_t n) const { return n + room < timetable_.count(rank); }
  bool has_next_arrival(int rank, std::int64_t arrival) const { return arrival + slots < count(rank); }

  RingBuilder& build_;
  const Timetable& timetable_;
  std::vector<std::vector<std::int64_t>> before_;  ///< by rank, by turn, and the number of all
  std::int32_t computed_, sent_;                   ///< counters, by piece
  std::int32_t returned_;                          ///< counter, by arrival

 private:
  Slice place(std::int32_t buffer, int rank, std::int64_t n) const {
    const KeyPiece& piece = timetable_.received(rank, timetable_.turn(rank, n));
    return build_.rows(buffer, rank, n % room * timetable_.longest(), piece.tokens.count());
  }
  std::int64_t most_arrivals() const;

  std::int32_t keys_out_, values_out_, keys_in_, values_in_;  // buffers
};

std::unique_ptr<GradientTransport> gradients_by_messages(RingBuilder& build, const Timetable& timetable);
std::unique_ptr<GradientTransport> gradients_by_copies(RingBuilder& build, const Timetable& timetable,
                                                       DirectCopies& copies);

}  // namespace shingle::planner
