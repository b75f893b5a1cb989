// Reductions in memory. One instruction in each function.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// Adds eight bf16 to memory of this device or a peer, and rounds to bf16. Each pair is atomic. Compute
/// capability 9.0 or above.
__device__ __forceinline__ void add_bf16x8(uint4* at, const uint4& value) {
  asm volatile("red.relaxed.sys.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace shingle::cuda::ptx
