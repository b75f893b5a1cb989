// Two 16-bit elements to and from fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace shingle::cuda {

/// Two consecutive elements, packed into 32 bits and back.
template <class T>
struct Pair;
template <>
struct Pair<__nv_bfloat16> {
  static __device__ __forceinline__ std::uint32_t pack(float x, float y) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const std::uint32_t&>(both);
  }
  static __device__ __forceinline__ float2 unpack(std::uint32_t bits) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits));
  }
};
template <>
struct Pair<__half> {
  static __device__ __forceinline__ std::uint32_t pack(float x, float y) {
    const __half2 both = __floats2half2_rn(x, y);
    return reinterpret_cast<const std::uint32_t&>(both);
  }
  static __device__ __forceinline__ float2 unpack(std::uint32_t bits) {
    return __half22float2(reinterpret_cast<const __half2&>(bits));
  }
};

}  // namespace shingle::cuda
