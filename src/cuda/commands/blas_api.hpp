// cuBLASLt's functions, opened at run time.
#pragma once

#include <cublasLt.h>

namespace shingle::cuda {

#define SHINGLE_BLAS_FUNCTIONS(X)         \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtGetStatusString)              \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)

struct BlasApi {
#define SHINGLE_DECLARE(function) decltype(&::function) function = nullptr;
  SHINGLE_BLAS_FUNCTIONS(SHINGLE_DECLARE)
#undef SHINGLE_DECLARE
};

/// Throws Unsupported if there is no cuBLASLt of the CUDA version that this build used.
const BlasApi& blas();

}  // namespace shingle::cuda
