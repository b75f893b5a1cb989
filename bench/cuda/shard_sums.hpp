// Three ways to sum bf16 products of all ranks on the rank that owns their rows. Either each source stores to
// its own region and the owner sums the regions. Or each source adds to the sum in the owner's memory, by
// threads or by TMA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shingle::cuda {

inline constexpr int most_owners = 16;

/// Memory of every owner, as addresses of the launching device.
struct Owners {
  void* at[most_owners] = {};
};

/// `count` of the `owners`, cyclically, starting at `first`.
struct Turns {
  int owners = 0, first = 0, count = 0;
};

enum class Send {
  store,     ///< 16 bytes a thread
  add,       ///< added with rounding to bf16, 16 bytes a thread
  add_bulk,  ///< likewise, by TMA, from shared memory
};

/// For each owner in `turns`, moves `count` elements (a multiple of 8) of that owner's part of `products` to
/// its memory.
cudaError_t launch_send(const void* products, const Owners& to, const Turns& turns, std::int64_t count,
                        Send way, int ctas, cudaStream_t stream);

/// Sums `sources` regions of `count` elements in their order in fp32, and rounds once.
cudaError_t launch_sum(const void* regions, int sources, std::int64_t count, void* sums, cudaStream_t stream);

}  // namespace shingle::cuda
