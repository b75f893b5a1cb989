// Functions of the CUDA driver, looked up at run time: programs that are not linked with it start without a
// driver.
#pragma once

#include <cuda_runtime_api.h>

#include "check.hpp"

namespace shingle::cuda {

/// Function is a function pointer type as <cuda.h> declares it. Null if the driver has no such function.
/// Throws CudaError if there is no driver.
template <class Function>
Function driver_function(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(entry) : nullptr;
}

}  // namespace shingle::cuda
