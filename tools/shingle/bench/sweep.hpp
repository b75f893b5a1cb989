// Many sizes of one operator (--sweep).
#pragma once

#include <string>
#include <vector>

#include "shingle/common/flags.hpp"

namespace shingle::cli {

/// Returns `flags` once for each combination of the sweeps, with the last sweep innermost. A sweep is, for
/// example, "k=1K,2K,4K", over m, n, k or inner. Without sweeps, returns the flags themselves. Throws
/// InvalidArgument.
std::vector<ProblemFlags> swept(const ProblemFlags& flags, const std::vector<std::string>& sweeps);

}  // namespace shingle::cli
