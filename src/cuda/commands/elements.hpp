// Maps the plan's types to those of the kernels.
#pragma once

#include "cuda/kernels/elementwise.hpp"
#include "shingle/base/dtype.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle::cuda {

/// Indices and counts only move, as any 32 bits do.
constexpr Element element(DType type) {
  return type == DType::f32 || type == DType::i32 ? Element::f32
         : type == DType::bf16                    ? Element::bf16
                                                  : Element::f16;
}

constexpr Activate activate(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return Activate::relu;
    case Activation::gelu:
      return Activate::gelu;
    case Activation::silu:
      return Activate::silu;
    case Activation::swiglu:
      return Activate::swiglu;
    case Activation::none:
      break;
  }
  return Activate::none;
}

}  // namespace shingle::cuda
