// Trial: do the branches of a CUDA graph run concurrently?
#pragma once

#include <cstddef>

namespace shingle::cuda {

/// True if `branches` branches of a graph run concurrently on the current device. The trial captures and
/// replays a graph whose branches repeatedly wait for each other, as the lanes of a plan do. CUDA does not
/// promise that such a graph ends. If its branches do not run concurrently, a wait passes its deadline, and
/// the result is false.
///
/// The result is false without a trial if there are fewer hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) than
/// branches. The driver orders the nodes of a graph as it likes, and a waiting node blocks later nodes of its
/// queue. Throws CudaError, Timeout.
bool run_side_by_side(std::size_t branches);

}  // namespace shingle::cuda
