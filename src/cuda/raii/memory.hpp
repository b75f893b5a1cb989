// Owners of memory: of the current device, and of the host, pinned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "check.hpp"

namespace shingle::cuda {

namespace detail {

/// Bytes that `Free` gives back.
template <cudaError_t (*Free)(void*)>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  OwnedMemory(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  OwnedMemory(OwnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~OwnedMemory() {
    if (data_ != nullptr) Free(data_);
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace detail

/// Of the device that is current when it is made. Throws CudaError.
class DeviceMemory : public detail::OwnedMemory<cudaFree> {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes) : OwnedMemory(allocate(bytes), bytes) {}

  /// Sets all bytes, and waits for it.
  void fill(int value) const {
    if (bytes() == 0) return;
    check(cudaMemset(data(), value, bytes()), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  static void* allocate(std::size_t bytes) {
    void* data = nullptr;
    if (bytes > 0) check(cudaMalloc(&data, bytes), "cudaMalloc");
    return data;
  }
};

/// Of the host, which all devices read and write at the host's address. Throws CudaError.
class PinnedMemory : public detail::OwnedMemory<cudaFreeHost> {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t bytes) : OwnedMemory(allocate(bytes), bytes) {}

 private:
  static void* allocate(std::size_t bytes) {
    void* data = nullptr;
    check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    return data;
  }
};

}  // namespace shingle::cuda
