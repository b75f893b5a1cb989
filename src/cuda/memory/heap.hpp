// The symmetric heap of a context: matrices that peers may access.
#pragma once

#include "shared.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::cuda {

class CudaHeap final : public Heap {
 public:
  /// Collective.
  CudaHeap(CudaWorld& world, std::int64_t bytes)
      : bytes_(bytes), memory_(world, static_cast<std::size_t>(bytes)) {
    memory_.share();
  }

  std::int64_t bytes() const override { return bytes_; }
  void* data(int rank) const override { return at(rank); }
  /// As SharedMemory::at.
  char* at(int rank) const { return memory_.at(rank); }

 private:
  std::int64_t bytes_;
  SharedMemory memory_;
};

}  // namespace shingle::cuda
