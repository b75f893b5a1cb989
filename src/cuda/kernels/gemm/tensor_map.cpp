#include "tensor_map.hpp"

namespace shingle::cuda {

namespace {

/// A function of the driver, looked up once: a look-up takes microseconds.
struct DriverFunction {
  void* entry = nullptr;
  cudaError_t failed = cudaSuccess;

  explicit DriverFunction(const char* name) {
    cudaDriverEntryPointQueryResult found{};
    failed = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
    if (failed == cudaSuccess && found != cudaDriverEntryPointSuccess) failed = cudaErrorNotSupported;
  }
};

}  // namespace

cudaError_t move_tensor_map(CUtensorMap& map, const void* base) {
  static const DriverFunction replace("cuTensorMapReplaceAddress");
  if (replace.failed != cudaSuccess) return replace.failed;
  const auto call = reinterpret_cast<decltype(&cuTensorMapReplaceAddress)>(replace.entry);
  return call(&map, const_cast<void*>(base)) == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

namespace {

/// The dimensions of a tensor and of its loads, the innermost first; stride_bytes: of all but that one.
template <int rank>
cudaError_t encode(const void* base, const cuuint64_t (&extent)[rank],
                   const cuuint64_t (&stride_bytes)[rank - 1], const cuuint32_t (&load)[rank],
                   CUtensorMap& map) {
  static const DriverFunction function("cuTensorMapEncodeTiled");
  if (function.failed != cudaSuccess) return function.failed;
  const cuuint32_t step[5] = {1, 1, 1, 1, 1};
  const auto call = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function.entry);
  const CUresult result =
      call(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, rank, const_cast<void*>(base), extent, stride_bytes, load,
           step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t encode_tensor_map(const MatrixBox& box, CUtensorMap& map) {
  const auto columns = static_cast<cuuint64_t>(box.cols), block = static_cast<cuuint64_t>(box.box_cols);
  const auto row_bytes = static_cast<cuuint64_t>(box.stride) * 2, rows = static_cast<cuuint64_t>(box.rows);
  const auto box_cols = static_cast<cuuint32_t>(box.box_cols),
             box_rows = static_cast<cuuint32_t>(box.box_rows),
             box_blocks = static_cast<cuuint32_t>(box.box_blocks);
  if (box.paired)
    return encode<5>(box.base, {block, 8, 2, rows / 16, columns / block},
                     {row_bytes, rows / 2 * row_bytes, 8 * row_bytes, block * 2},
                     {box_cols, 8, 2, box_rows / 16, box_blocks}, map);
  if (box.stacked > 0)
    return encode<3>(box.base, {columns, rows, static_cast<cuuint64_t>(box.stacked)},
                     {row_bytes, rows * row_bytes}, {box_cols, box_rows, 1}, map);
  if (box.box_blocks > 0)
    return encode<3>(box.base, {block, rows, columns / block}, {row_bytes, block * 2},
                     {box_cols, box_rows, box_blocks}, map);
  return encode<2>(box.base, {columns, rows}, {row_bytes}, {box_cols, box_rows}, map);
}

}  // namespace shingle::cuda
