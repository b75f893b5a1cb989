#include "budget.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/base/units.hpp"

namespace shingle {
namespace {

/// Index of the largest value.
template <class Values>
std::size_t largest(const Values& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

/// Names the kind of work that cost most, because the last operation may be of any kind.
void Budget::refuse() const {
  auto cost = done_;
  for (std::size_t i = 0; i < cost.size(); ++i) cost[i] *= works[i].price;
  const std::size_t most = largest(cost);
  throw TooLarge{fmt::format(
      "too large to prove: the proof takes more than {} million units of work, mostly {} {} or more",
      most_spent / 1000000, std::min(done_[most], most_spent / works[most].price), works[most].name)};
}

void Budget::refuse_memory() const {
  const std::size_t most = largest(held_);
  throw TooLarge{fmt::format("too large to prove: the proof takes more than {} of memory, mostly for {}",
                             format_bytes(static_cast<double>(most_kept)), memories[most])};
}

}  // namespace shingle
