// movmatrix: a warp transposes a matrix in registers.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// Transposes an 8×8 matrix of 16-bit elements. A lane holds elements 2 · (lane % 4) and the next one of row
/// lane / 4.
__device__ __forceinline__ std::uint32_t transposed_8x8(std::uint32_t pair) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

}  // namespace shingle::cuda::ptx
