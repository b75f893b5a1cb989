// Values in outputs: the same on all ranks, and rounded as the plan states.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "content.hpp"
#include "region_map.hpp"
#include "tracked_memory.hpp"
#include "values.hpp"

namespace shingle {

class Results {
 public:
  Results(const Plan& plan, const ValueTable& values, Budget& budget);

  /// Notes that an output holds these elements. Throws CheckFailure if another rank or an earlier epoch holds
  /// the same elements with other values.
  void note(const Place& at, const Rect& rect, Content found);
  /// Throws CheckFailure if the steps do not round as Plan::rounding states.
  void check_statement() const;

 private:
  struct Held {
    Content content;
    std::int32_t rank = 0;
  };

  bool holds(const Rounding& statement) const;

  const Plan& plan_;
  bool scatters_;  ///< each rank keeps its shard of the rows of a sum
  const ValueTable& values_;
  Budget& budget_;
  std::vector<RegionMap<Held>> first_;  // by buffer: the first value noted for each element
  std::set<std::pair<ValueTable::Id, int>>
      found_;  // values and the ranks that hold them; -1: all ranks hold the same
};

}  // namespace shingle
