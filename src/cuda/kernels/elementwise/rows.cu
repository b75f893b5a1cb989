// Instances of the row-wise kernels.
#include "by_type.cuh"
#include "rows.cuh"

namespace shingle::cuda {
namespace {

template <class S, class T>
struct PlainKernel {
  static const void* get() { return reinterpret_cast<const void*>(rows_kernel<S, T, false>); }
};
template <class S, class T>
struct GatedKernel {
  static const void* get() { return reinterpret_cast<const void*>(rows_kernel<S, T, true>); }
};

}  // namespace

const void* find_rows_kernel(const ElementwiseArgs& args) {
  if (args.mixed) return nullptr;
  return args.activate == Activate::swiglu ? by_type<GatedKernel>(args) : by_type<PlainKernel>(args);
}

}  // namespace shingle::cuda
