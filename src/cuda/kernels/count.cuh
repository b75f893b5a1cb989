// The notify of device code: every kernel adds to counters through this function.
#pragma once

#include "cuda/kernels/ptx/memory.cuh"

namespace shingle::cuda {

/// Adds to a counter with release semantics: it covers the stores of this thread, and stores that reached it
/// through a barrier. Scope: this GPU. With `system` also other devices, copy engines and the host.
__device__ __forceinline__ void add_release(std::uint32_t* counter, std::uint32_t value, bool system) {
  if (system)
    ptx::add_release_sys(counter, value);
  else
    ptx::add_release_gpu(counter, value);
}

}  // namespace shingle::cuda
