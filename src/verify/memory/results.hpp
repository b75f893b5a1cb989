// What outputs hold, by how it is computed: alike on all ranks, and as the plan says.
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

  /// An output holds these elements. Throws CheckFailure where another rank, or an earlier epoch, holds the
  /// same elements as other values.
  void note(const Place& at, const Rect& rect, Content found);
  /// Throws CheckFailure where Plan::rounding is not what the plan does.
  void check_statement() const;

 private:
  struct Held {
    Content content;
    std::int32_t rank = 0;
  };

  bool holds(const Rounding& statement) const;

  const Plan& plan_;
  const ValueTable& values_;
  Budget& budget_;
  std::vector<RegionMap<Held>> first_;              // by buffer: who came first to an element
  std::set<std::pair<ValueTable::Id, int>> found_;  // and by whom it is owned; -1: by all alike
};

}  // namespace shingle
