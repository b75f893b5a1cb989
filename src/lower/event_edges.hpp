// Event edges: counts between two lanes of a rank that become events between their streams. An event edge
// holds no SM; a waiting kernel would hold one.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Counts that become events. A count does so under these conditions:
///
/// - One notify, on the count's own rank, makes the whole count.
/// - Only awaits on that rank read it, or passes that follow their groups (plan/steps.hpp).
/// - These are issued after the notify: a stream can only wait for an event that has been recorded.
/// - No copy engine or host thread uses it: these read counts, not events.
class EventEdges {
 public:
  explicit EventEdges(const Plan& plan);

  static constexpr int none = -1;
  /// Number of events of a rank.
  int size(int rank) const { return sizes_[static_cast<std::size_t>(rank)]; }
  /// Event of a count, or of the count that a step awaits or notifies. It is an index among the events of its
  /// rank, or `none`.
  int of(const CounterRef& count) const;
  int of(const Step& step) const;

 private:
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, counter, entry
  std::map<Key, int> counts_;
  std::vector<int> sizes_;  // by rank
};

}  // namespace shingle
