// The part of the planner `sequential` that has no GEMM.
#pragma once

#include "planner/common/builder.hpp"

namespace shingle::planner {

/// allgather, reducescatter, allreduce and alltoall as one call of a library, with what it needs before and
/// after: libraries want equal parts, and an all-to-all its rows by destination.
void call_library(Builder& build);

}  // namespace shingle::planner
