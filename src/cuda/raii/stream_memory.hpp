// Device memory in the order of a stream. Neither allocating nor freeing it waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "check.hpp"
#include "stream.hpp"
#include "tolerate.hpp"

namespace shingle::cuda {

class StreamMemory {
 public:
  StreamMemory(std::size_t bytes, const Stream& stream) : stream_(stream.get()), bytes_(bytes) {
    if (bytes == 0) return;
    const cudaError_t result = cudaMallocAsync(&data_, bytes, stream_);
    if (result == cudaErrorMemoryAllocation)
      cudaGetLastError();
    else
      check(result, "cudaMallocAsync");
  }
  ~StreamMemory() {
    if (data_ != nullptr) tolerate(cudaFreeAsync(data_, stream_), "cudaFreeAsync");
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  /// False if the device had no memory left.
  bool is_there() const noexcept { return bytes_ == 0 || data_ != nullptr; }
  void* get() const noexcept { return data_; }

 private:
  cudaStream_t stream_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace shingle::cuda
