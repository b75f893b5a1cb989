// Whether branches of a graph run side by side.
#pragma once

#include <cstddef>

namespace shingle::cuda {

/// Replays a graph of its own on the current device, whose branches wait for each other again and again, as
/// lanes of a plan do: nobody promises that such a graph ends. Where it does not, its waits pass a deadline,
/// and the answer is no. So it is without a trial where there are fewer hardware queues
/// (CUDA_DEVICE_MAX_CONNECTIONS) than branches: a graph issues its nodes in an order of its own, and what
/// waits in a queue holds up what is behind it. Throws CudaError, Timeout.
bool run_side_by_side(std::size_t branches);

}  // namespace shingle::cuda
