// What destructors do with results: they never throw.
#pragma once

#include <cuda_runtime_api.h>

namespace shingle::cuda {

/// Writes a line to stderr where a call, named so, did not succeed; says nothing once the runtime unloads.
void tolerate(cudaError_t result, const char* call) noexcept;

}  // namespace shingle::cuda
