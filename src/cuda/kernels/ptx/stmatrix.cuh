// stmatrix: a warp stores four 8×8 matrices of 16-bit elements to shared memory.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// Lane l passes the shared-memory address of row l % 8 of matrix l / 8. In register i a lane holds elements
/// 2 · (lane % 4) and the next one, in row lane / 4 of matrix i.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address, std::uint32_t r0, std::uint32_t r1,
                                            std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace shingle::cuda::ptx
