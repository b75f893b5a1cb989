// Happens-before: the segments of a schedule that are ordered in every interleaving.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "clock.hpp"
#include "shingle/verify/verify.hpp"
#include "verify/progress/schedule.hpp"

namespace shingle {

/// Adds to a count and awaits of it, by step, relative to the epoch. They are the same in every epoch.
struct CountPattern {
  struct Entry {
    std::int32_t event = 0;   ///< index of the repeated segment
    std::int64_t amount = 0;  ///< amount added in an epoch; `set` counter: the value; await: the target
    std::int64_t at_once = 0;
    bool of_parts = false;
  };
  bool set = false;
  std::int64_t growth = 0;
  std::vector<Entry> adds;
  std::vector<Entry> awaits;
};

class Order {
 public:
  /// Computes the order. It has four sources:
  ///
  /// 1. A lane runs its steps in turn, except the commands of a copy lane.
  /// 2. Lanes of a rank begin an epoch after all of them finished the previous one. Prelaunched lanes do not.
  /// 3. A rank that gets data from a collective or message knows all that its senders did before.
  /// 4. An await knows an add if its target cannot be reached without that add.
  ///
  /// The fourth depends on the others. The order grows until nothing changes, so earlier edges justify every
  /// edge. In a context only adds of the await's own epoch count: the plan's last epoch may be long ago.
  Order(const Plan& plan, const Schedule& schedule, Setting setting, Budget& budget);

  /// True if the schedule has too few epochs to tell how far steps may run ahead of an await.
  bool needs_more_epochs() const { return needs_more_; }
  /// First step that may add to an awaited count any number of epochs ahead of the await; -1 if there is
  /// none. A 32-bit count cannot tell such epochs apart.
  std::int32_t unbounded() const { return unbounded_; }
  /// Max number of epochs by which an add may be ahead of an await of the same count; 0 if nothing is
  /// awaited.
  std::int32_t most_ahead() const { return most_ahead_; }
  /// Max number of epochs by which a rank may be ahead of another. It is 1 if each rank begins an epoch only
  /// after all others have begun the previous one. It is -1, without bound, if some rank gets no signal from
  /// another.
  std::int32_t skew() const;

  /// True if `earlier` finishes before `segment` starts, in every interleaving.
  bool knows(std::int32_t segment, std::int32_t earlier) const { return knows(*clocks_[segment], earlier); }
  /// As knows(), before `segment` has awaited gates of its parts (TileGate::of_parts).
  bool knows_without_parts(std::int32_t segment, std::int32_t earlier) const {
    const auto early = without_parts_.find(segment);
    return early == without_parts_.end() ? knows(segment, earlier) : knows(*early->second, earlier);
  }

 private:
  /// An await in epoch e knows the add of epoch e − lag.
  struct Edge {
    std::int32_t add;
    std::int32_t lag;
    bool of_parts;
  };

  bool knows(const Clock& clock, std::int32_t earlier) const;
  bool carries_data(const Event& message) const;
  bool overtakes(const Segment& s) const;
  void index_events();
  void index_counts();
  /// One pass over the schedule, with the edges known so far.
  void run_clocks();
  /// Finds edges from adds to awaits. Returns true if there are new ones.
  bool find_edges();
  bool find_edges(const CountPattern& count);
  void find_bounds();
  std::vector<std::int32_t> lags_of_adds(const CountPattern& count, std::int32_t event);
  std::int32_t lag(std::int32_t event, std::int32_t earlier) const;
  std::vector<bool> lines_heard_by(std::int32_t line) const;
  /// The segment of an event in an epoch, or -1.
  std::int32_t instance(std::int32_t event, std::int32_t epoch) const {
    return instances_[static_cast<std::size_t>(event)][static_cast<std::size_t>(epoch)];
  }
  std::int32_t line_of(std::int32_t event) const { return schedule_.segments[instance(event, 0)].line; }

  const Plan& plan_;
  const Schedule& schedule_;
  const std::int32_t longest_lag_;  // of an edge
  Budget& budget_;
  std::vector<std::shared_ptr<const Clock>> clocks_;  // by segment: the clock at its start
  /// Of segments that await parts: the clock before they do.
  std::unordered_map<std::int32_t, std::shared_ptr<const Clock>> without_parts_;
  std::vector<std::vector<std::int32_t>>
      instances_;  // [event][epoch]; an event is one run of items of a step in all epochs
  std::vector<std::int32_t> event_of_;      // by segment
  std::vector<CountPattern> counts_;        // of awaited counters
  std::vector<std::vector<Edge>> awaited_;  // by event
  bool needs_more_ = false;
  std::int32_t unbounded_ = -1;
  std::int32_t most_ahead_ = 0;
};

}  // namespace shingle
