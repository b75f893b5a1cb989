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

cudaError_t encode_tensor_map(const MatrixBox& box, CUtensorMap& map) {
  static const DriverFunction function("cuTensorMapEncodeTiled");
  if (function.failed != cudaSuccess) return function.failed;
  const auto columns = static_cast<cuuint64_t>(box.cols), block = static_cast<cuuint64_t>(box.box_cols);
  const bool blocks = box.box_blocks > 0, stacked = box.stacked > 0;
  const auto row_bytes = static_cast<cuuint64_t>(box.stride) * 2, rows = static_cast<cuuint64_t>(box.rows);
  const cuuint64_t extent[3] = {blocks ? block : columns, rows,
                                stacked ? static_cast<cuuint64_t>(box.stacked) : columns / block};
  const cuuint64_t stride_bytes[2] = {row_bytes, stacked ? rows * row_bytes : block * 2};
  const cuuint32_t load[3] = {static_cast<cuuint32_t>(box.box_cols), static_cast<cuuint32_t>(box.box_rows),
                              blocks ? static_cast<cuuint32_t>(box.box_blocks) : 1};
  const cuuint32_t step[3] = {1, 1, 1};
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function.entry);
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, blocks || stacked ? 3 : 2, const_cast<void*>(box.base),
             extent, stride_bytes, load, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace shingle::cuda
