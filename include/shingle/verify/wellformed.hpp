// Well-formed: a plan that can be verified, printed and executed without indexing outside anything
// (docs/concepts/proofs.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// The first thing wrong with the plan by itself, on one line that names rank, lane, step and field; nullopt
/// where there is nothing. Checked are: the problem; the user's buffers against it; every index; every slice
/// against its buffer; every grid, row map and placement, for all tiles at once in closed form; every hook
/// against its grid and counter; operands, messages and collectives against each other; no store to a user's
/// input. Not checked is what it takes several steps to see: progress, races, content, and whether the ranks'
/// collectives agree (verify/verify.hpp). Never throws on any plan; costs O(steps · groups · world).
std::optional<std::string> malformed(const Plan& plan);

/// Parses a plan (plan/json.hpp). Throws InvalidArgument if the text or the plan is malformed.
Plan plan_from_json(std::string_view text);

}  // namespace shingle
