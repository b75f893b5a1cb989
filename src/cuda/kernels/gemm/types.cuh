// Maps element types between CUTLASS and Shingle.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cutlass/numeric_types.h>

#include "cuda/kernels/elementwise.hpp"

namespace shingle::cuda {

template <class T>
struct CutlassType;
template <>
struct CutlassType<__nv_bfloat16> {
  using type = cutlass::bfloat16_t;
  static constexpr Element element = Element::bf16;
};
template <>
struct CutlassType<__half> {
  using type = cutlass::half_t;
  static constexpr Element element = Element::f16;
};

}  // namespace shingle::cuda
