// Many sizes of one operator (--sweep).
#pragma once

#include <string>
#include <vector>

#include "shingle/common/flags.hpp"

namespace shingle::cli {

/// `flags` once for each combination of the sweeps, each such as "k=1K,2K,4K" for m, n, k or inner; the last
/// changes fastest. Without any, the flags themselves. Throws InvalidArgument.
std::vector<ProblemFlags> swept(const ProblemFlags& flags, const std::vector<std::string>& sweeps);

}  // namespace shingle::cli
