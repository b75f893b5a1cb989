// Instances of the row-wise kernels.
#include "by_type.cuh"
#include "rows.cuh"

namespace shingle::cuda {
namespace {

template <bool gated, bool ringed>
struct Rows {
  template <class S, class T>
  struct Kernel {
    static const void* get() { return reinterpret_cast<const void*>(rows_kernel<S, T, gated, ringed>); }
  };
};

}  // namespace

const void* find_rows_kernel(const ElementwiseArgs& args, bool ringed) {
  if (args.mixed) return nullptr;
  if (args.activate == Activate::swiglu)
    return ringed ? by_type<Rows<true, true>::Kernel>(args) : by_type<Rows<true, false>::Kernel>(args);
  return ringed ? by_type<Rows<false, true>::Kernel>(args) : by_type<Rows<false, false>::Kernel>(args);
}

}  // namespace shingle::cuda
