// A kernel that writes down when counts change.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shingle::cuda {

/// The most counts that are watched at once.
inline constexpr std::int32_t most_watched = 1 << 14;

/// Watches `count` counts from one SM, of which it takes all threads, and writes into seen_ns[i] the device's
/// time at which count i was first seen to be other than zero: up to a microsecond after it was. Adds one to
/// `ready` when it begins to look. Ends when all have changed, or so long after; of those that had not, the
/// time stays as it was.
cudaError_t launch_watch(const std::uint32_t* counts, std::int32_t count, std::uint64_t* seen_ns,
                         std::uint32_t* ready, std::uint64_t timeout_ns, cudaStream_t stream);

/// Loads the kernel: one that is first used while another waits could hang.
cudaError_t preload_watch();

}  // namespace shingle::cuda
