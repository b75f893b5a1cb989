// A kernel that records when counters change.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shingle::cuda {

/// Limit of counters in one launch.
inline constexpr std::int32_t most_watched = 1 << 14;

/// Watches `count` counters with all threads of one SM. Writes to seen_ns[i] the device time at which counter
/// i was first seen to be non-zero, up to a microsecond after the change. Adds 1 to `ready` when it starts to
/// poll.
///
/// Ends when all counters have changed, or after `timeout_ns`. Times of counters that have not changed stay
/// as they were.
cudaError_t launch_watch(const std::uint32_t* counts, std::int32_t count, std::uint64_t* seen_ns,
                         std::uint32_t* ready, std::uint64_t timeout_ns, cudaStream_t stream);

/// Loads the kernel. Loading a kernel while another one waits could deadlock.
cudaError_t preload_watch();

}  // namespace shingle::cuda
