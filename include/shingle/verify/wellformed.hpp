// Well-formed: a plan that can be verified, printed and executed without indexing out of range
// (docs/concepts/proofs.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// The first defect of the plan, on one line that names rank, lane, step and field; nullopt if there is none.
///
/// Checked:
/// - the problem, and the user's buffers against it
/// - every index, and every slice against its buffer
/// - every grid, row map and placement, for all tiles at once in closed form
/// - every hook against its grid and counter
/// - operands, messages and collectives against each other
/// - that no step stores to a user's input
///
/// Not checked are properties of several steps: progress, races, content, and whether the collectives of the
/// ranks agree (verify/verify.hpp). Never throws on any plan. The cost is O(steps · groups · world).
std::optional<std::string> malformed(const Plan& plan);

/// Parses a plan (plan/json.hpp). Throws InvalidArgument if the text or the plan is malformed.
Plan plan_from_json(std::string_view text);

}  // namespace shingle
