// A block of device memory for each local rank, which all ranks can access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/peer/mapping.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

class CudaWorld;

class SharedMemory {
 public:
  /// Allocates a block of at least `bytes` bytes on each local rank. Throws CudaError.
  SharedMemory(CudaWorld& world, std::size_t bytes);
  /// Frees the blocks once no other process has them mapped.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Maps the blocks of other processes, if ranks can access each other's memory. Collective. Throws anything
  /// that Mappings::exchange throws.
  void share();
  /// The block of a rank, as the local ranks can access it. Null if it is out of reach.
  char* at(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  /// Sets all bytes of the local blocks, and waits for the devices.
  void fill(std::uint8_t value) const;

 private:
  CudaWorld& world_;
  std::vector<DeviceMemory> own_;        // by index of the local rank
  std::vector<char*> places_;            // by rank
  std::optional<std::uint64_t> number_;  // of mapped memory (Retired::number)
  Mappings mappings_;
};

}  // namespace shingle::cuda
