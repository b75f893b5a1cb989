#include "tolerate.hpp"

#include <cstdio>

namespace shingle::cuda {

void tolerate(cudaError_t result, const char* call) noexcept {
  if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
  std::fprintf(stderr, "shingle: %s: %s (%s)\n", call, cudaGetErrorString(result), cudaGetErrorName(result));
}

}  // namespace shingle::cuda
