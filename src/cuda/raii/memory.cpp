#include "memory.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>

#include "check.hpp"
#include "driver.hpp"
#include "tolerate.hpp"

namespace shingle::cuda {

std::uint64_t allocation_of(const void* memory) {
  static const auto attribute = driver_function<decltype(&cuPointerGetAttribute)>("cuPointerGetAttribute");
  unsigned long long number = 0;
  if (attribute == nullptr || attribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                        reinterpret_cast<CUdeviceptr>(memory)) != CUDA_SUCCESS)
    return 0;
  return number;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : OwnedMemory(bytes) {
  if (bytes > 0) check(cudaMalloc(&data_, bytes), fmt::format("cudaMalloc of {} bytes", bytes).c_str());
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) tolerate(cudaFree(data_), "cudaFree");
}

void DeviceMemory::fill(int value) const {
  if (bytes_ == 0) return;
  check(cudaMemset(data_, value, bytes_), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

PinnedMemory::PinnedMemory(std::size_t bytes) : OwnedMemory(bytes) {
  if (bytes == 0) return;
  // With unified addressing the device address equals the host address.
  check(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
        fmt::format("cudaHostAlloc of {} bytes", bytes).c_str());
  std::memset(data_, 0, bytes);
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) tolerate(cudaFreeHost(data_), "cudaFreeHost");
}

}  // namespace shingle::cuda
