// stmatrix and ldmatrix: a warp stores or loads four 8×8 matrices of 16-bit elements in shared memory.
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

/// Loads what stmatrix_x4() stores.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

}  // namespace shingle::cuda::ptx
