// Finds the steps of a plan that add to a count.
#pragma once

#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// True if a step adds to this count, when it is done or with one of its tiles.
bool adds(const Step& step, const CounterRef& to);

/// Ranks with a step that adds to this count, in order.
std::vector<int> ranks_that_add(const Plan& plan, const CounterRef& to);

}  // namespace shingle
