#include "blas_api.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/raii/opened_library.hpp"

namespace shingle::cuda {

const BlasApi& blas() {
  static const BlasApi api = [] {
    const OpenedLibrary library(fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000));
    BlasApi found;
#define SHINGLE_FIND(name) found.name = reinterpret_cast<decltype(found.name)>(library.function(#name));
    SHINGLE_BLAS_FUNCTIONS(SHINGLE_FIND)
#undef SHINGLE_FIND
    return found;
  }();
  return api;
}

}  // namespace shingle::cuda
