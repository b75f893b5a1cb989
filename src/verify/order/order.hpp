// Happens-before: which segments of a schedule are ordered whatever the interleaving.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "clock.hpp"
#include "verify/progress/schedule.hpp"

namespace shingle {

/// A count's adds and awaits by the steps that make them, relative to the epoch: all epochs are alike.
struct CountPattern {
  struct Entry {
    std::int32_t event = 0;   ///< index of the repeated segment
    std::int64_t amount = 0;  ///< added an epoch; of a `set` counter the value; of an await the target
    std::int64_t at_once = 0;
  };
  bool set = false;
  std::int64_t growth = 0;
  std::vector<Entry> adds;
  std::vector<Entry> awaits;
};

class Order {
 public:
  /// Sources of order: lanes run their steps in turn, but for the commands of copy lanes; a rank's lanes
  /// begin an epoch after all of them finished the last; whoever leaves a collective or has a message knows
  /// what those did before whose data it got; an await knows an add if its target cannot be reached without
  /// it. The last depends on the others: the order grows until nothing changes, so that every edge is
  /// justified by earlier ones.
  Order(const Plan& plan, const Schedule& schedule, Budget& budget);

  /// Whether the schedule has too few epochs to tell how far steps may run ahead of an await. Run more.
  bool needs_more_epochs() const { return needs_more_; }
  /// The first step that adds to an awaited count and may do so any number of epochs ahead of the await, or
  /// -1: no 32-bit count can tell such epochs apart.
  std::int32_t unbounded() const { return unbounded_; }
  /// The most epochs by which an add may be ahead of an await of the same count; 0 if nothing is awaited.
  std::int32_t most_ahead() const { return most_ahead_; }
  /// The most epochs by which a rank may be ahead of another: 1 if each begins an epoch only after all others
  /// have begun the one before. -1: without bound, as some rank never hears of another.
  std::int32_t skew() const;

  /// Whether `segment` starts after `earlier` has finished, in every interleaving.
  bool knows(std::int32_t segment, std::int32_t earlier) const { return knows(*clocks_[segment], earlier); }

 private:
  /// The add that an await knows: that of `lag` epochs before its own.
  struct Edge {
    std::int32_t add;
    std::int32_t lag;
  };

  bool knows(const Clock& clock, std::int32_t earlier) const;
  bool carries_data(const Event& message) const;
  bool overtakes(const Segment& s) const;
  void index_events();
  void index_counts();
  /// One pass over the schedule with the edges known so far.
  void run_clocks();
  /// Finds awaits' edges; returns whether there are new ones.
  bool find_edges();
  bool find_edges(const CountPattern& count);
  void find_bounds();
  std::vector<std::int32_t> lags_of_adds(const CountPattern& count, std::int32_t event);
  std::int32_t lag(std::int32_t event, std::int32_t earlier) const;
  std::vector<bool> lines_heard_by(std::int32_t line) const;
  /// The segment of an epoch in which an event happens, or -1.
  std::int32_t instance(std::int32_t event, std::int32_t epoch) const {
    return instances_[static_cast<std::size_t>(event)][static_cast<std::size_t>(epoch)];
  }
  std::int32_t line_of(std::int32_t event) const { return schedule_.segments[instance(event, 0)].line; }

  const Plan& plan_;
  const Schedule& schedule_;
  Budget& budget_;
  std::vector<std::shared_ptr<const Clock>> clocks_;  // by segment: at its start
  std::vector<std::vector<std::int32_t>> instances_;  // by event, the same items of the same step: by epoch
  std::vector<std::int32_t> event_of_;                // by segment
  std::vector<CountPattern> counts_;                  // those that are awaited
  std::vector<std::vector<Edge>> awaited_;            // by event
  bool needs_more_ = false;
  std::int32_t unbounded_ = -1;
  std::int32_t most_ahead_ = 0;
};

}  // namespace shingle
