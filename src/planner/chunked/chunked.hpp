// Parts of the planner `chunked`, for operators without a single GEMM.
#pragma once

#include "planner/common/builder.hpp"

namespace shingle::planner {

using ChunkedBuilder = ParamBuilder<ChunkedParams>;

/// alltoall+grouped-gemm, grouped-gemm+alltoall and moe, with products in the machine's tiles. Plans at most
/// as many chunks as the params say, which must be at least 1.
void experts_in_chunks(ChunkedBuilder& build, const Machine& machine);

}  // namespace shingle::planner
