// Arithmetic that all kernels share: conversion to and from fp32, activations.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "elementwise.hpp"

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

__device__ __forceinline__ float silu(float x) {
  return x / (1 + __expf(-x));
}

/// Of one element; swiglu takes two, and is `silu(gate) * up`.
__device__ __forceinline__ float activated(Activate activate, float x) {
  switch (activate) {
    case Activate::relu:
      return fmaxf(x, 0);
    case Activate::gelu:
      return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    case Activate::silu:
      return silu(x);
    default:
      return x;
  }
}

}  // namespace shingle::cuda
