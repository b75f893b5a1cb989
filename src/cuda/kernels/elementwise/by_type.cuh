// Maps element types from values to template parameters.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels.hpp"

namespace shingle::cuda {

/// Kernel<S, T>::get() with S the type of the sources and T that of everything else; null if there is no such
/// kernel.
template <template <class, class> class Kernel>
const void* by_type(const ElementwiseArgs& args) {
  const bool wide = args.source_type == Element::f32;
  if (!wide && args.source_type != args.type) return nullptr;
  switch (args.type) {
    case Element::f32:
      return Kernel<float, float>::get();
    case Element::bf16:
      return wide ? Kernel<float, __nv_bfloat16>::get() : Kernel<__nv_bfloat16, __nv_bfloat16>::get();
    case Element::f16:
      return wide ? Kernel<float, __half>::get() : Kernel<__half, __half>::get();
  }
  return nullptr;
}

}  // namespace shingle::cuda
