// The part of the planner `sequential` for operators without a GEMM.
#pragma once

#include "planner/common/builder.hpp"

namespace shingle::planner {

/// Plans allgather, reducescatter, allreduce and alltoall as one collective, with the copies before and after
/// it. NCCL and MPI need equal parts, and the rows of an alltoall sorted by destination.
void call_library(Builder& build);

}  // namespace shingle::planner
