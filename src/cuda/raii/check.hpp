// Results of CUDA calls as exceptions.
#pragma once

#include <cuda_runtime_api.h>

namespace shingle::cuda {

/// Throws CudaError where a call, named so, did not succeed.
void check(cudaError_t result, const char* call);

}  // namespace shingle::cuda
