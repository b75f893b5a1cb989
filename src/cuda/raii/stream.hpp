// Owner of a stream of the device that is current when it is made.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "check.hpp"

namespace shingle::cuda {

class Stream {
 public:
  /// Does not wait for the legacy default stream. Throws CudaError.
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace shingle::cuda
