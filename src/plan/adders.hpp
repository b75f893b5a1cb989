// Which steps of a plan add to a count.
#pragma once

#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Whether a step adds to this count, once it is done or with one of its tiles.
bool adds(const Step& step, const CounterRef& to);

/// Ranks that have such a step, in order.
std::vector<int> ranks_that_add(const Plan& plan, const CounterRef& to);

}  // namespace shingle
