// What the counters of a plan grow by in one epoch.
#pragma once

#include "shingle/plan/plan.hpp"

namespace shingle::planner {

/// Adds the growth from the steps of one rank to the plan's counters.
void grow_counters(Plan& plan, const RankPlan& rank);

}  // namespace shingle::planner
