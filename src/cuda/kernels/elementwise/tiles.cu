// Instances of the tile-by-tile kernels.
#include "by_type.cuh"
#include "move.cuh"

namespace shingle::cuda {
namespace {

template <class S, class T>
struct SumKernel {
  static const void* get() { return reinterpret_cast<const void*>(tiles_kernel<Sum<S, T>>); }
};

}  // namespace

const void* find_tiles_kernel(const ElementwiseArgs& args) {
  if (!copies(args)) return by_type<SumKernel>(args);
  return size_of(args.type) == 2 ? reinterpret_cast<const void*>(tiles_kernel<Copy<std::uint16_t>>)
                                 : reinterpret_cast<const void*>(tiles_kernel<Copy<std::uint32_t>>);
}

}  // namespace shingle::cuda
