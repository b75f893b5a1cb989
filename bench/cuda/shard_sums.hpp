// Two ways in which bf16 products of all ranks become sums on the rank that owns their rows: stored into a
// region for each source and summed there, or added to the sum in the owner's memory as they come.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shingle::cuda {

inline constexpr int most_owners = 16;

/// Every owner's memory, as the launching device reaches it.
struct Owners {
  void* at[most_owners] = {};
};

/// So many of the owners, one after the other and round, from one on.
struct Turns {
  int owners = 0, first = 0, count = 0;
};

/// Moves `count` elements (a multiple of 8) of the part of `products` of each owner whose turn it is there:
/// stores them, or adds them with rounding to bf16.
cudaError_t launch_send(const void* products, const Owners& to, const Turns& turns, std::int64_t count,
                        bool adds, int ctas, cudaStream_t stream);

/// The sum of `sources` regions of `count` elements, in their order in fp32, rounded once.
cudaError_t launch_sum(const void* regions, int sources, std::int64_t count, void* sums, cudaStream_t stream);

}  // namespace shingle::cuda
