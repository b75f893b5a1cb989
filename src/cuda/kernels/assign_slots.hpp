// Slots for the choices of tokens (struct AssignSlots of plan.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "hooks.hpp"

namespace shingle::cuda {

/// Limits of shared memory.
inline constexpr std::int32_t most_experts = 8192, most_choices = 64;

/// All matrices are dense.
struct AssignSlotsArgs {
  const std::int32_t* ids = nullptr;  ///< tokens × choices
  std::int32_t tokens = 0;            ///< that exist
  std::int32_t most_tokens = 0;
  std::int32_t choices = 0;
  std::int32_t experts = 0;
  std::int32_t capacity = 0;
  std::int32_t* row_of = nullptr;   ///< experts · capacity
  std::int32_t* slot_of = nullptr;  ///< most_tokens × choices
  std::int32_t* counts = nullptr;   ///< experts
  std::int32_t* dropped = nullptr;  ///< 2
};

/// Does not depend on the timing of threads.
cudaError_t launch_assign_slots(const AssignSlotsArgs& args, cudaStream_t stream);
/// Loads the kernel: CUDA would otherwise load it at its first launch, which waits for the device.
cudaError_t preload_assign_slots();

}  // namespace shingle::cuda
