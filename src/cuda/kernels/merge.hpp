// Merges of partial attentions (struct Merge of plan.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "elementwise.hpp"

namespace shingle::cuda {

inline constexpr int most_merged_parts = 16;

/// Queries [row, row + rows) of a merge. Distances from a row to the next are in elements.
struct MergePart {
  const char* value = nullptr;
  const float* lse = nullptr;
  std::int64_t value_row = 0, lse_row = 0;
  std::int64_t row = 0, rows = 0;
  bool wide = false;  ///< the values are f32; otherwise they have the merge's type
};

struct MergeArgs {
  Element type = Element::bf16;  ///< of values that are not f32
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;  ///< a multiple of 8 up to 256
  std::int32_t part_count = 0;
  MergePart parts[most_merged_parts];
  char* to = nullptr;  ///< may be the values of a part
  std::int64_t to_row = 0;
  bool to_wide = false;
  float* lse = nullptr;  ///< may be that of a part; null: not stored
  std::int64_t lse_row = 0;
};

/// Merges in fp32, in the order of the parts. All values lie at multiples of 16 bytes, or are moved element
/// by element.
cudaError_t launch_merge(const MergeArgs& args, cudaStream_t stream);
/// Loads the kernels: CUDA would otherwise load them at their first launch, which waits for the device.
cudaError_t preload_merge();

}  // namespace shingle::cuda
