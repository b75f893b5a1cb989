// Happens-before: which segments of a schedule are ordered whatever the interleaving.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "schedule.hpp"

namespace shingle {

/// What a segment can rely on having happened: all steps of line l up to number lines[l], and besides these
/// single segments of which this is not so: of tiled steps that have not finished, and of copy lanes.
struct Clock {
  std::vector<std::uint32_t> lines;
  std::vector<std::int32_t> runs;  // ascending
};

class Order {
 public:
  /// Sources of order: lanes run their steps in turn, but for the commands of copy lanes; a rank's lanes
  /// begin an epoch after all of them finished the last; whoever leaves a collective or has a message knows
  /// what those did before whose data it got; an await knows an add if its target cannot be reached without
  /// it. The last depends on the others: the order grows until nothing changes, so that every edge is
  /// justified by earlier ones.
  Order(const Plan& plan, const Schedule& schedule);

  /// The first step that adds to an awaited count and may do so any number of epochs ahead of the await, or
  /// -1: no 32-bit count can tell such epochs apart.
  std::int32_t unbounded() const { return unbounded_; }
  /// Whether the plan has more awaits and adds than can be compared in bounded time.
  bool too_large() const { return work_ > max_work; }

  /// Whether `segment` starts after `earlier` has finished, in every interleaving.
  bool knows(std::int32_t segment, std::int32_t earlier) const { return knows(*clocks_[segment], earlier); }

 private:
  bool knows(const Clock& clock, std::int32_t earlier) const;
  bool carries_data(const Event& message) const;
  bool overtakes(const Segment& s) const;
  /// One pass over the schedule with the edges known so far.
  void run_clocks();
  /// Finds awaits' edges; returns whether there are new ones.
  bool find_edges();
  bool certain(const CountHistory& count, const Signal& await, const Signal& add);
  bool runs_away(std::int32_t other, std::int32_t await, std::int32_t add) const;
  void find_unbounded();
  /// The same items of the same step in another epoch.
  std::int32_t instance(std::int32_t segment, std::int32_t epoch) const {
    return instances_[static_cast<std::size_t>(of_[static_cast<std::size_t>(segment)])]
                     [static_cast<std::size_t>(epoch)];
  }

  const Plan& plan_;
  const Schedule& schedule_;
  std::vector<std::shared_ptr<const Clock>> clocks_;  // by segment: at its start
  std::vector<std::vector<std::int32_t>> awaited_;    // by segment: segments whose adds it awaits for certain
  std::vector<std::vector<std::int32_t>> instances_;  // by items of a step: the segment of each epoch
  std::vector<std::int32_t> of_;                      // by segment: index into instances_
  std::int32_t unbounded_ = -1;
  static constexpr std::int64_t max_work = std::int64_t{1} << 28;
  std::int64_t work_ = 0;
};

}  // namespace shingle
