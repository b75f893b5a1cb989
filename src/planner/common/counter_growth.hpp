// What the counters of a plan grow by in one epoch.
#pragma once

#include "shingle/plan/plan.hpp"

namespace shingle::planner {

/// Adds the growth from the steps of one rank to the plan's counters.
void grow_counters(Plan& plan, const RankPlan& rank);

/// Appends to the first lane of each rank the awaits of all adds by other ranks that none of its steps
/// awaits: of tiles, for example, that have no rows for the rank. Calls of a context need that every add by a
/// peer comes before the rank ends the epoch. Requires the growth of all ranks.
void await_remaining_adds(Plan& plan);

}  // namespace shingle::planner
