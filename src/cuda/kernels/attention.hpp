// What attention needs beside cuDNN: log-sum-exps by token, and the backward of single queries.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "elementwise.hpp"

namespace shingle::cuda {

/// Log-sum-exps as cuDNN packs them: by sequence, by head, by query.
struct PackedLse {
  float* packed = nullptr;
  std::int64_t sequences = 1, queries = 0;  ///< queries of a sequence
  std::int32_t heads = 0;
};
/// Copies between these and a matrix with a row for each query, `row` elements apart, and a column for each
/// head.
cudaError_t launch_pack_lse(const float* lse, std::int64_t row, const PackedLse& to, cudaStream_t stream);
cudaError_t launch_unpack_lse(const PackedLse& from, float* lse, std::int64_t row, cudaStream_t stream);

/// Rows of a matrix, a distance of `row_bytes` apart.
struct AttentionRows {
  char* at = nullptr;
  std::int64_t row_bytes = 0;
};

/// Backward of attention where the i-th query sees the i-th key alone, which cuDNN has no kernel for. The
/// matrices have a row for each query or key, and a block of head_dim columns for each head, except `lse`,
/// which has a column.
struct SingleBackwardArgs {
  Element type = Element::bf16;  ///< bf16 or f16; `lse` is f32
  std::int64_t queries = 0;
  std::int32_t kv_heads = 0;
  std::int32_t sharing = 0;   ///< query heads that share a head of K and V
  std::int32_t head_dim = 0;  ///< a multiple of 8 up to 256
  float scale = 1;            ///< of the scores
  AttentionRows q, keys, values, out, lse, grad;
  AttentionRows q_grad, keys_grad, values_grad;  ///< stored
};
/// Computes in fp32, in the order of the heads, and rounds once.
cudaError_t launch_single_backward(const SingleBackwardArgs& args, cudaStream_t stream);

/// Loads the kernels: CUDA would otherwise load them at their first launch, which waits for the device.
cudaError_t preload_attention();

}  // namespace shingle::cuda
