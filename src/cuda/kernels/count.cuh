// The one way in which device code counts.
#pragma once

#include "cuda/kernels/ptx/memory.cuh"

namespace shingle::cuda {

/// Adds to a count once what this thread did, or saw through a barrier, is visible to who reads it: to other
/// devices, copy engines and the host only with `system`.
__device__ __forceinline__ void add_release(std::uint32_t* counter, std::uint32_t value, bool system) {
  if (system)
    ptx::add_release_sys(counter, value);
  else
    ptx::add_release_gpu(counter, value);
}

}  // namespace shingle::cuda
