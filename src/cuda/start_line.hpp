// Where the ranks of a run wait for each other, so that they begin it at one time.
#pragma once

#include <vector>

#include "cuda/local_rank.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

class CudaWorld;

/// Launches reach the devices one after the other, tens of microseconds apart. Behind this line they all wait
/// in the devices for a word of the host's, and, where there are other processes, for a small collective with
/// them.
class StartLine {
 public:
  /// Collective.
  explicit StartLine(CudaWorld& world);

  /// On the device of the local rank: what follows in the stream waits for go().
  void enqueue(std::size_t index, const Watch& watch, cudaStream_t stream);
  /// All local ranks have enqueued it.
  void go();

 private:
  void connect();
  void enqueue_barrier(std::size_t index, cudaStream_t stream);

  CudaWorld& world_;
  PinnedMemory word_;
  std::uint32_t runs_ = 0;
  std::vector<DeviceMemory> scratch_;  // by local rank; none where all ranks are of this process
};

}  // namespace shingle::cuda
