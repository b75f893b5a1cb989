// Instances of the tile-by-tile kernels.
#include "by_type.cuh"
#include "move.cuh"

namespace shingle::cuda {
namespace {

template <class S, class T>
struct SumKernel {
  static const void* get() { return reinterpret_cast<const void*>(tiles_kernel<Sum<S, T>>); }
};

template <class T>
const void* find_copy_kernel(bool bulk) {
  return bulk ? reinterpret_cast<const void*>(tiles_kernel<BulkCopy<T>>)
              : reinterpret_cast<const void*>(tiles_kernel<Copy<T>>);
}

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
  return size_of(args.type) == 2 ? find_copy_kernel<std::uint16_t>(args.room > 0)
                                 : find_copy_kernel<std::uint32_t>(args.room > 0);
}

}  // namespace shingle::cuda
