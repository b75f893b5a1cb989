// Plans of some ranks that stand for all.
#pragma once

#include <optional>
#include <string_view>

#include "shingle/planner/planner.hpp"

namespace shingle::planner {

/// How many ranks are planned: all, or where params or a world above max_world ask for it the first ones
/// after which the machine's links repeat.
int planned_ranks(const Problem& problem, const Machine& machine, const Params& params);

/// Why these do not stand for all, or nullopt.
std::optional<Reason> asymmetric(const Problem& problem, const Machine& machine, const Params& params);

/// Of a mechanism whose ranks reach into each other's memory: the reason why it must plan all of them, where
/// that is not what is asked for.
std::optional<Reason> needs_all_ranks(const Problem& problem, const Params& params,
                                      std::string_view mechanism);

}  // namespace shingle::planner
