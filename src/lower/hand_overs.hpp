// Where one lane of a rank waits for another one alone. A backend whose lanes are streams orders these
// without a kernel that waits, which would hold an SM for as long; the simulator counts them alike.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// A count is handed over where one notify of its rank's own makes all of it, and all that look at it are
/// awaits of its rank's own, or passes of its own that follow their groups (plan/steps.hpp), which are
/// issued later: a stream can only be ordered behind what has been issued.
class HandOvers {
 public:
  HandOvers() = default;  ///< of a plan that has none
  explicit HandOvers(const Plan& plan);

  static constexpr int none = -1;
  /// How many a rank has.
  int size(int rank) const { return sizes_[static_cast<std::size_t>(rank)]; }
  /// Which of its rank's a count is.
  int of(const CounterRef& count) const;
  /// Which of its rank's an await or a notify waits for or makes.
  int of(const Step& step) const;

 private:
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, counter, entry
  std::map<Key, int> counts_;
  std::vector<int> sizes_;  // by rank
};

}  // namespace shingle
