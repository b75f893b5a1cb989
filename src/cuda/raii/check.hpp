// Turns errors of CUDA calls into exceptions.
#pragma once

#include <cuda_runtime_api.h>

namespace shingle::cuda {

/// Throws CudaError if `call` failed.
void check(cudaError_t result, const char* call);

}  // namespace shingle::cuda
