#include "tensor_map.hpp"

namespace shingle::cuda {

cudaError_t encode_tensor_map(const MatrixBox& box, CUtensorMap& map) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (const cudaError_t failed = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                                  cudaEnableDefault, &found))
    return failed;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  const cuuint64_t extent[2] = {static_cast<cuuint64_t>(box.cols), static_cast<cuuint64_t>(box.rows)};
  const cuuint64_t stride_bytes[1] = {static_cast<cuuint64_t>(box.stride) * 2};
  const cuuint32_t load[2] = {static_cast<cuuint32_t>(box.box_cols), static_cast<cuuint32_t>(box.box_rows)};
  const cuuint32_t step[2] = {1, 1};
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(box.base), extent, stride_bytes, load,
             step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace shingle::cuda
