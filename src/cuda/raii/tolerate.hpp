// Error handling for destructors, which never throw.
#pragma once

#include <cuda_runtime_api.h>

namespace shingle::cuda {

/// Prints a line to stderr if `call` failed. Prints nothing while the CUDA runtime unloads.
void tolerate(cudaError_t result, const char* call) noexcept;

}  // namespace shingle::cuda
