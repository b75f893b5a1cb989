// Activations in fp32, with the formulas of the host.
//
// silu has a fast exponential and division, whose relative error is below 2^-17 where |x| < 40; below -87.3
// the result is 0. Exact ones branch, so that the values of a tile cannot overlap.
#pragma once

#include "cuda/kernels/elementwise.hpp"

namespace shingle::cuda {

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

__device__ __forceinline__ float gelu(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

/// Activations of one matrix. swiglu has two inputs and is not included.
template <int length>
__device__ __forceinline__ void activate(Activate activation, float (&x)[length]) {
  if (activation == Activate::relu) {
#pragma unroll
    for (float& v : x) v = v < 0 ? 0.0f : v;  // NaN stays NaN
  } else if (activation == Activate::gelu) {
#pragma unroll
    for (float& v : x) v = gelu(v);
  } else if (activation == Activate::silu) {
#pragma unroll
    for (float& v : x) v = silu(v);
  }
}

}  // namespace shingle::cuda
