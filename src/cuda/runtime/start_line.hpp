// Barrier on the devices at which the ranks of a run start together.
#pragma once

#include <nccl.h>

#include <vector>

#include "cuda/raii/memory.hpp"
#include "local_rank.hpp"

namespace shingle::cuda {

class CudaWorld;

/// Launches reach the devices tens of microseconds apart. At the start line every device waits for a host
/// word. With other processes, the devices also wait for a small NCCL all-reduce over all ranks.
class StartLine {
 public:
  /// Collective. The caller must call meet() before the first enqueue().
  explicit StartLine(CudaWorld& world);

  /// With other processes: later work of the stream starts after all ranks have reached this point. NCCL
  /// connects the ranks at the first call, which must therefore not follow a wait for the host.
  void meet(std::size_t index, cudaStream_t stream);
  /// On the device of the local rank: makes later work of the stream wait for go().
  void enqueue(std::size_t index, const Watch& watch, cudaStream_t stream);
  /// True if enqueue() makes streams wait at this address.
  bool is_awaited_at(const std::uint32_t* word) const { return word == word_.get<std::uint32_t>(); }
  /// Releases the devices. All local ranks must have called enqueue().
  void go();

 private:
  PinnedMemory word_;
  std::uint32_t runs_ = 0;
  // By local rank; empty if this process has all ranks.
  std::vector<ncclComm_t> everyone_;
  std::vector<DeviceMemory> scratch_;
};

}  // namespace shingle::cuda
