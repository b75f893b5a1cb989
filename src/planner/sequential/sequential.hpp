// Parts of the planner `sequential`, for operators without a single GEMM.
#pragma once

#include "planner/common/builder.hpp"

namespace shingle::planner {

/// Plans allgather, reducescatter, allreduce and alltoall as one collective, with the copies before and after
/// it. NCCL and MPI need equal parts, and the rows of an alltoall sorted by destination.
void call_library(Builder& build);

/// ulysses-attention: all-to-all of Q, K and V, attention, all-to-all of its result.
void ulysses_in_sequence(Builder& build);
/// alltoall+grouped-gemm, grouped-gemm+alltoall and moe, with products in the machine's tiles.
void experts_in_sequence(Builder& build, const Machine& machine);
/// allgather+grouped-gemm, grouped-gemm+reducescatter and moe-tp, likewise. `merges`: slots of all ranks.
void sliced_experts_in_sequence(Builder& build, const Machine& machine, bool merges);
/// grouped-gemm+allreduce and moe+allreduce, likewise.
void replicated_tokens_in_sequence(Builder& build, const Machine& machine);
/// allgather+attention: all-gathers of K and of V, attention.
void gather_keys(Builder& build);
/// attention-backward: all-gathers of K and of V, its backward, all-to-alls of the parts of their gradients
/// and sums.
void attend_backward_in_sequence(Builder& build);

/// K and V of all ranks, a row for each token in their order: buffers.
struct KeysOfAll {
  std::int32_t keys;
  std::int32_t values;
};
/// Appends the all-gathers of K and of V on all ranks; there are at least two. The steps that a compute lane
/// gets next may read them.
KeysOfAll all_gather_keys(Builder& build);

}  // namespace shingle::planner
