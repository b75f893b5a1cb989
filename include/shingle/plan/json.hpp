// Plans as JSON, both ways. The format is versioned and keeps closed forms. parse_plan() of to_json() is
// equal to the plan.
#pragma once

#include <string>
#include <string_view>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Rises if plans of the version before can no longer be read.
inline constexpr int plan_json_version = 1;

/// Throws nothing. `indent` < 0 writes one line.
std::string to_json(const Plan& plan, int indent = 1);

/// Strict parser. Unknown, missing and repeated keys, wrong types, values out of range and another version
/// throw InvalidArgument. The message holds the path to the field ("ranks[1].lanes[0].steps[2].target: …").
/// No input crashes it. It checks each value alone: an index may be out of range. plan_from_json()
/// (verify/wellformed.hpp) also checks that the values fit together.
///
/// A plan holds its "problem" or its "workload". Older plans hold a workload as the problem of the operator
/// "overlap", and TileSums::to as one placement; these are read too.
Plan parse_plan(std::string_view text);

/// The problem alone, in the format that it has in a plan.
std::string to_json(const Problem& problem, int indent = 1);
Problem problem_from_json(std::string_view text);
/// As problem_from_json(), for a problem whose routing is stored elsewhere. It checks each value, not that
/// they fit together.
Problem unrouted_problem_from_json(std::string_view text);

/// A workload's lists alone: {"computations": […], "collectives": […]}, as in a plan. The parser takes world
/// and dtype from its caller, and validates the workload.
std::string lists_to_json(const Workload& workload, int indent = 1);
Workload workload_from_lists(std::string_view text, int world, DType dtype);

/// Params alone, in the format that they have in a plan. The parser does not check that a planner accepts
/// them.
std::string to_json(const ParamList& params, int indent = 1);
ParamList params_from_json(std::string_view text);

}  // namespace shingle
