// Flagged memory of all ranks (kernels/flagged.hpp), for a plan or for all plans of a context.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/flagged.hpp"
#include "cuda/raii/memory.hpp"
#include "shared.hpp"

namespace shingle::cuda {

class CudaWorld;

class FlaggedMemory {
 public:
  /// `bytes`: of what a delivery may receive. Collective; throws anything that SharedMemory::share throws.
  FlaggedMemory(CudaWorld& world, std::int64_t bytes);
  FlaggedMemory(const FlaggedMemory&) = delete;
  FlaggedMemory& operator=(const FlaggedMemory&) = delete;

  /// Where data begin in a copy, behind the greetings.
  static std::int64_t first_byte(int world);
  /// For the kernels of a local rank. Throws Unsupported if it cannot access all ranks' memory.
  FlaggedPlace place(int rank) const;
  /// The rank that an awaited greeting is of; -1 if this is none.
  int awaited(const void* at) const;

 private:
  struct Own {
    int rank = 0;
    DeviceMemory state;
  };
  CudaWorld& world_;
  std::int64_t copy_bytes_;
  SharedMemory memory_;
  std::vector<Own> own_;  // by local rank
};

}  // namespace shingle::cuda
