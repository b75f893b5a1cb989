// Plans as JSON, both ways. Versioned; closed forms stay closed forms; what is written reads back equal.
#pragma once

#include <string>
#include <string_view>

#include "shingle/plan/plan.hpp"

namespace shingle {

inline constexpr int plan_json_version = 1;

/// Throws nothing; `indent` < 0 is one line.
std::string to_json(const Plan& plan, int indent = 1);

/// Strict: unknown, missing and repeated keys, wrong types, values out of range, and another version throw
/// InvalidArgument with the path to the field ("ranks[1].lanes[0].steps[2].target: …"). Never crashes on any
/// input. Checks each value by itself: an index may point nowhere. plan_from_json (verify/wellformed.hpp)
/// checks how the values fit.
Plan parse_plan(std::string_view text);

/// The problem alone, as it stands in a plan.
std::string to_json(const Problem& problem, int indent = 1);
Problem problem_from_json(std::string_view text);
/// A problem whose routing, if it needs one, is kept elsewhere: each value is checked, not how they fit.
Problem unrouted_problem_from_json(std::string_view text);

/// An overlap's list alone, as it stands in a problem.
std::string to_json(const Overlap& overlap, int indent = 1);
Overlap overlap_from_json(std::string_view text);

/// Params alone, as they stand in a plan. Whether a planner takes them is not checked.
std::string to_json(const Params& params, int indent = 1);
Params params_from_json(std::string_view text);

}  // namespace shingle
