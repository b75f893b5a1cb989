// Instances of the kernels whose sources are picked by an index. Apart from tiles.cu, whose kernels have no
// index to look at.
#include "by_type.cuh"
#include "picked.cuh"

namespace shingle::cuda {
namespace {

template <class T>
const void* find_copy_kernel(bool bulk) {
  return bulk ? reinterpret_cast<const void*>(tiles_kernel<PickedBulkCopy<T>>)
              : reinterpret_cast<const void*>(tiles_kernel<PickedCopy<T>>);
}

}  // namespace

const void* find_picked_kernel(const ElementwiseArgs& args) {
  if (args.mixed || (args.source_type != args.type && !widens(args))) return nullptr;
  if (copies(args))
    return size_of(args.type) == 2 ? find_copy_kernel<std::uint16_t>(args.room > 0)
                                   : find_copy_kernel<std::uint32_t>(args.room > 0);
  switch (args.source_type) {
    case Element::f32:
      return reinterpret_cast<const void*>(tiles_kernel<PickedSum<float, float>>);
    case Element::bf16:
      return widens(args)
                 ? reinterpret_cast<const void*>(tiles_kernel<PickedSum<__nv_bfloat16, float>>)
                 : reinterpret_cast<const void*>(tiles_kernel<PickedSum<__nv_bfloat16, __nv_bfloat16>>);
    case Element::f16:
      return widens(args) ? reinterpret_cast<const void*>(tiles_kernel<PickedSum<__half, float>>)
                          : reinterpret_cast<const void*>(tiles_kernel<PickedSum<__half, __half>>);
  }
  return nullptr;
}

}  // namespace shingle::cuda
