// ring, for attention followed by a reduce-scatter.
#pragma once

#include "shingle/planner/planner.hpp"

namespace shingle::planner {

/// Of a valid attention+reducescatter.
Result<Plan> ring_attention(const Problem& problem, const Machine& machine, const Params& params);

}  // namespace shingle::planner
