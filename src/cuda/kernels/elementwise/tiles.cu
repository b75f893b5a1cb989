// Instances of the tile-by-tile kernels.
#include "by_type.cuh"
#include "move.cuh"

namespace shingle::cuda {
namespace {

template <class S, class T>
struct SumKernel {
  static const void* get() { return reinterpret_cast<const void*>(tiles_kernel<Sum<S, T>>); }
};

template <class N>
const void* find_mixed_kernel(Element type) {
  return type == Element::f32 ? reinterpret_cast<const void*>(tiles_kernel<MixedSum<N, float>>)
                              : reinterpret_cast<const void*>(tiles_kernel<MixedSum<N, N>>);
}

}  // namespace

const void* find_tiles_kernel(const ElementwiseArgs& args) {
  if (args.mixed) {
    if (args.type != Element::f32 && args.type != args.source_type) return nullptr;
    if (args.source_type == Element::bf16) return find_mixed_kernel<__nv_bfloat16>(args.type);
    return args.source_type == Element::f16 ? find_mixed_kernel<__half>(args.type) : nullptr;
  }
  if (widens(args))
    return args.source_type == Element::bf16 ? SumKernel<__nv_bfloat16, float>::get()
                                             : SumKernel<__half, float>::get();
  if (!copies(args)) return by_type<SumKernel>(args);
  return size_of(args.type) == 2 ? reinterpret_cast<const void*>(tiles_kernel<Copy<std::uint16_t>>)
                                 : reinterpret_cast<const void*>(tiles_kernel<Copy<std::uint32_t>>);
}

}  // namespace shingle::cuda
