// signal for experts: the part of the planner whose products are grouped.
#pragma once

#include "shingle/planner/planner.hpp"

namespace shingle::planner {

/// alltoall+grouped-gemm, grouped-gemm+alltoall and moe. The groups of the params are shares of each rank's
/// tiles, cut between the rows of two experts or two ranks.
Result<Plan> signal_experts(const Problem& problem, const Machine& machine, const SignalParams& params);

}  // namespace shingle::planner
