// Tensor maps of row-major matrices of 16-bit elements, for TMA loads in the layout that wgmma reads.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shingle::cuda {

/// A matrix, and the box of one load: rows of 128 bytes with 128-byte swizzle. With `box_blocks` the box has
/// as many blocks of `box_cols` columns, one behind the other, and a load has three coordinates: column in
/// the block, row, block. The matrix then has whole blocks. With `stacked` as many such matrices lie one
/// below the other, and the third coordinate is a matrix: a box that exceeds one has zeros, not rows of the
/// next.
struct MatrixBox {
  const void* base = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;  ///< elements between two rows
  std::int32_t box_rows = 0;
  std::int32_t box_cols = 0;
  std::int32_t box_blocks = 0;
  std::int64_t stacked = 0;
};

/// Encodes a tensor map; elements outside the matrix load as zeros. Returns cudaErrorInvalidValue if the
/// driver rejects the map, for example for a base or stride that is not a multiple of 16 bytes.
cudaError_t encode_tensor_map(const MatrixBox& box, CUtensorMap& map);

/// Replaces the base of an encoded tensor map.
cudaError_t move_tensor_map(CUtensorMap& map, const void* base);

}  // namespace shingle::cuda
