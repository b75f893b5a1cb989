#include "budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "shingle/base/units.hpp"

namespace shingle {
namespace {

constexpr std::array<std::string_view, 7> work_names{
    "comparisons of adds and awaits", "nodes of vector clocks", "attempts of lanes to go on",
    "tiles and their pieces",         "accesses to memory",     "cuts of memory",
    "steps and runs of tiles"};
constexpr std::array<std::string_view, 5> memory_names{"the plan itself", "the schedule", "vector clocks",
                                                       "lags of adds", "cells of memory"};

/// The index of the largest.
template <class Values>
std::size_t largest(const Values& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

/// Names what most of the work went into: the last straw may be anything.
void Budget::refuse() const {
  auto cost = done_;
  for (std::size_t i = 0; i < cost.size(); ++i) cost[i] *= prices[i];
  const std::size_t most = largest(cost);
  throw TooLarge{
      fmt::format("too large to prove: more than {} million units of work, most of which are {} {} or more",
                  most_spent / 1000000, std::min(done_[most], most_spent / prices[most]), work_names[most])};
}

void Budget::refuse_memory() const {
  const std::size_t most = largest(held_);
  throw TooLarge{fmt::format("too large to prove: more than {} of memory, most of which is {}",
                             format_bytes(static_cast<double>(most_kept)), memory_names[most])};
}

}  // namespace shingle
