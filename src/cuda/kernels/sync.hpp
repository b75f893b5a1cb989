// Small kernels that wait, count and begin an epoch.
#pragma once

#include <cuda_runtime_api.h>

#include "hooks.hpp"

namespace shingle::cuda {

inline constexpr int most_targets = 64;

/// Begins an epoch: adds one to the word. It starts at 2³² - 1, so that the first epoch is 0.
cudaError_t launch_begin(std::uint32_t* epoch, cudaStream_t stream);

/// Waits for up to most_targets counts in one kernel of one warp: what follows in the stream may read what
/// they announce.
cudaError_t launch_await(const Target* targets, int count, const Watch& watch, cudaStream_t stream);

/// Adds `value` to a count once everything before it in the stream is done; `system`: readers are elsewhere.
cudaError_t launch_notify(std::uint32_t* counter, std::uint32_t value, bool system, cudaStream_t stream);

/// Sets a count to base + value, where base is the epoch's.
cudaError_t launch_set(std::uint32_t* counter, std::uint32_t value, std::uint32_t growth, const Watch& watch,
                       cudaStream_t stream);

cudaError_t preload_sync();

}  // namespace shingle::cuda
