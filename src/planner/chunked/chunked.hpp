// Parts of the planner `chunked`, for operators without a single GEMM.
#pragma once

#include "planner/common/builder.hpp"

namespace shingle::planner {

using ChunkedBuilder = ParamBuilder<ChunkedParams>;

/// alltoall+grouped-gemm, grouped-gemm+alltoall and moe, with products in the machine's tiles. Plans at most
/// as many chunks as the params say, which must be at least 1.
void experts_in_chunks(ChunkedBuilder& build, const Machine& machine);

/// The same for tensor-parallel experts, in at most as many chunks as there are ranks.
void sliced_experts_in_chunks(ChunkedBuilder& build, const Machine& machine);
/// Default number of their chunks, up to `most`. Each chunk reads all weights again. So it should have a tile
/// of each expert, or a cluster of tiles, for which multiplying takes longer than reading.
std::int32_t chunks_of_slices(const Problem& problem, const Machine& machine, std::int32_t most);

}  // namespace shingle::planner
