// Tensor maps of row-major matrices of 16-bit elements, for bulk loads in the layout that wgmma reads.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shingle::cuda {

/// A matrix, and the box of it that one load brings: rows of 128 bytes, swizzled.
struct MatrixBox {
  const void* base = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;  ///< elements from row to row
  std::int32_t box_rows = 0;
  std::int32_t box_cols = 0;
};

/// What lies outside the matrix is loaded as zeros. cudaErrorInvalidValue where the driver refuses the map (a
/// base or stride that is no multiple of 16 bytes, say).
cudaError_t encode_tensor_map(const MatrixBox& box, CUtensorMap& map);

}  // namespace shingle::cuda
