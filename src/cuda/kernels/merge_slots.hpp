// The slots of all ranks, merged (struct MergeSlots of plan/step.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "hooks.hpp"

namespace shingle::cuda {

/// All matrices are dense. Outputs but `live` may be null.
struct MergeSlotsArgs {
  const std::int32_t* counts = nullptr;   ///< ranks × experts
  const std::int32_t* slot_of = nullptr;  ///< (ranks · tokens) × choices
  std::int32_t ranks = 0;
  std::int32_t tokens = 0;  ///< of a rank, at most
  std::int32_t choices = 0;
  std::int32_t experts = 0;
  std::int32_t capacity = 0;
  std::int32_t* live = nullptr;       ///< experts
  std::int32_t* merged_of = nullptr;  ///< as slot_of
  std::int32_t* token_of = nullptr;   ///< experts · ranks · capacity; so are the next two
  std::int32_t* row_of = nullptr;
  std::int32_t* slot_at = nullptr;
};

/// Does not depend on the timing of threads.
cudaError_t launch_merge_slots(const MergeSlotsArgs& args, cudaStream_t stream);
/// Loads the kernel: CUDA would otherwise load it at its first launch, which waits for the device.
cudaError_t preload_merge_slots();

}  // namespace shingle::cuda
