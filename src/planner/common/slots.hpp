// Routing on the device: the step that gives tokens slots, and what its indices and counts are for.
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// Element of Slots::live() that counts the rows from a source for one of a rank's experts. -1 without slots.
std::int32_t live_element(const Routing& routing, int rank, int source, int weight);

/// The indices and counts of a plan's AssignSlots steps.
///
/// A rank has its own. With tensor-parallel experts it needs those of all ranks, unless these have the same
/// tokens: buffers then have a part for each rank, and a rank assigns in its own part.
class Slots {
 public:
  /// Declares their buffers. `merged`: ranks need each other's for MergedSlots only.
  explicit Slots(Builder& build, bool merged = false);

  /// Appends the step that gives the choices of a rank's tokens slots to its compute lane.
  void assign(int rank) const;
  /// The tokens of a rank's slots, of all or of those that go to one rank.
  Placement tokens(int rank) const;
  Placement tokens(int rank, int to) const;
  /// The tokens of a source's slots, from `tokens`, which are those of the source.
  Placement tokens(int rank, int source, const Slice& tokens) const;

  /// Counts of the rows that a rank multiplies: those from other ranks, a row each, then those of its own
  /// slots, a row for each rank that they go to. With tensor-parallel experts a row for each rank.
  Slice live(int rank) const { return build_.all(live_, rank); }
  Slice counts_from(int rank) const { return build_.rows(live_, rank, 0, build_.world()); }
  Slice counts_to(int rank) const;
  /// Buffers of tensor-parallel experts whose own parts all other ranks need.
  std::vector<std::int32_t> gathered() const;
  /// The slots of the choices of all tokens: of those of all ranks, with tensor-parallel experts.
  Slice slot_of(int rank) const { return build_.all(slot_of_, rank); }
  /// The pass that stores a rank's counts on all ranks, each of which then finds 1 in entry `rank` of
  /// `counted`. counted = -1: nobody awaits that.
  Elementwise send_counts(int rank, std::int32_t counted) const;
  /// Appends the all-to-all by which ranks tell each other their counts.
  void exchange_counts(int rank) const;
  /// Appends the pass that stores the counts of a rank's rows for the user, if there is such an output.
  void return_counts(int rank) const;
  /// The pass that sums the choices of a rank's tokens, in a slice that has the products of all slots.
  Elementwise combine(int rank, const Slice& products) const;
  /// The same for the tokens of a source, with their factors.
  Elementwise combine(int rank, int source, const Slice& products, const Slice& factors,
                      const Slice& to) const;

 private:
  /// The part of a source in a buffer; all of it if the rank has only its own.
  Slice part(std::int32_t buffer, int rank, int source) const;

  Builder& build_;
  const Problem& p_;
  const Routing& routing_;
  const bool of_all_;  // buffers have a part for each rank; `row_of_` not if merged
  const bool merged_;
  std::int32_t row_of_, slot_of_, live_;
};

/// Those of one choice, in slots of choices.
Slice of_choice(Slice slots, std::int64_t choice);
/// The rows that an index picks.
Placement picked(const Slice& rows, const Slice& index);
/// The part of a rank in a buffer that has equal parts of all ranks.
Slice part_of(const Builder& build, std::int32_t buffer, int rank, int of);

}  // namespace shingle::planner
