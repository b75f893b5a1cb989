// signal for experts: the part of the planner whose products are grouped.
#pragma once

#include <vector>

#include "shingle/planner/planner.hpp"

namespace shingle::planner {

/// alltoall+grouped-gemm, grouped-gemm+alltoall and moe. The groups of the params are shares of each rank's
/// tiles, cut between the rows of two experts or two ranks.
Result<Plan> signal_experts(const Problem& problem, const Machine& machine, const SignalParams& params);

/// allgather+grouped-gemm, grouped-gemm+reducescatter and moe-tp. The groups of the params, which must be
/// right, are shares of all tokens, own tokens first.
Result<Plan> signal_sliced_experts(const Problem& problem, const Machine& machine, SignalParams params);
/// grouped-gemm+allreduce and moe+allreduce. The groups are shares of the columns of the output.
Result<Plan> signal_replicated_tokens(const Problem& problem, const Machine& machine, SignalParams params);
/// Most groups of tensor-parallel experts: each has work queues.
inline constexpr std::size_t most_groups_of_slices = 512;
/// Groups for sliced experts: own tokens, then those of each other rank in `cut` groups.
std::vector<std::int64_t> groups_by_rank(int world, std::int64_t cut);

}  // namespace shingle::planner
