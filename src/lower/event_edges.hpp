// Event edges: counts that one lane of a rank hands to another, so that events can order their streams. A
// kernel that waits would hold an SM for as long.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Counts that become events. One notify of the count's own rank makes all of it. Only awaits of that rank,
/// or passes that wait group by group (plan/steps.hpp), look at it, and they are issued later: a stream can
/// only wait for an event that was recorded before. Copy engines and threads of the host see counts, not
/// events.
class EventEdges {
 public:
  explicit EventEdges(const Plan& plan);

  static constexpr int none = -1;
  /// The number of events of a rank.
  int size(int rank) const { return sizes_[static_cast<std::size_t>(rank)]; }
  /// The event of a count, or of what a step awaits or notifies: an index among those of its rank, or none.
  int of(const CounterRef& count) const;
  int of(const Step& step) const;

 private:
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, counter, entry
  std::map<Key, int> counts_;
  std::vector<int> sizes_;  // by rank
};

}  // namespace shingle
