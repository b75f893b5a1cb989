// Functions of CUDA's driver, which nothing is linked with, so that programs start without one.
#pragma once

#include <cuda_runtime_api.h>

#include "check.hpp"

namespace shingle::cuda {

/// Function is a pointer to one as <cuda.h> declares it. Null where the driver has none of this name; throws
/// CudaError where there is no driver.
template <class Function>
Function driver_function(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(entry) : nullptr;
}

}  // namespace shingle::cuda
