// Memory in the order of a stream: neither its allocation nor its release waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace shingle::cuda {

/// A pool of the device that is current at construction. It keeps what is released, for later allocations.
class MemoryPool {
 public:
  MemoryPool();
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// For work of the stream from now on, until release() on the same stream.
  void* allocate(std::size_t bytes, cudaStream_t stream) const;
  static void release(void* memory, cudaStream_t stream);

 private:
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace shingle::cuda
