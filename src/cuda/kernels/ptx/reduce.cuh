// Sums in memory. One instruction a function.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// Adds eight bf16 to memory, on this device or a peer, each pair at once, rounded to bf16. Compute
/// capability 9.0.
__device__ __forceinline__ void add_bf16x8(uint4* at, const uint4& value) {
  asm volatile("red.relaxed.sys.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace shingle::cuda::ptx
