// Where the ranks of a run wait for each other, so that they begin it at one time.
#pragma once

#include <nccl.h>

#include <vector>

#include "cuda/raii/memory.hpp"
#include "local_rank.hpp"

namespace shingle::cuda {

class CudaWorld;

/// Launches reach the devices one after the other, tens of microseconds apart. Behind this line they all wait
/// in the devices for a word of the host's, and, where there are other processes, for a small collective with
/// them.
class StartLine {
 public:
  /// Collective; meet() comes before the first enqueue().
  explicit StartLine(CudaWorld& world);

  /// Where there are other processes: what follows in the stream comes after all ranks have come here. The
  /// first time the library connects them, behind nothing that waits for the host.
  void meet(std::size_t index, cudaStream_t stream);
  /// On the device of the local rank: what follows in the stream waits for go().
  void enqueue(std::size_t index, const Watch& watch, cudaStream_t stream);
  /// All local ranks have enqueued it.
  void go();

 private:
  PinnedMemory word_;
  std::uint32_t runs_ = 0;
  // By local rank; none where all ranks are of this process.
  std::vector<ncclComm_t> everyone_;
  std::vector<DeviceMemory> scratch_;
};

}  // namespace shingle::cuda
