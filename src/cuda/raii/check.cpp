#include "check.hpp"

#include <fmt/format.h>

#include "shingle/base/error.hpp"

namespace shingle::cuda {

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that no later call reports it again
  throw CudaError(fmt::format("{}: {} ({})", call, cudaGetErrorString(result), cudaGetErrorName(result)),
                  result, -1);
}

}  // namespace shingle::cuda
