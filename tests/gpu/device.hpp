// Helpers of GPU tests: data on the device, and the words that every wait polls.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "cuda/kernels/hooks.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"

namespace shingle::cuda::test {

inline bool gpu_here() {
  return std::filesystem::exists("/dev/nvidia0");
}

/// The data is complete for any stream on return. cudaMemcpy alone may return before the device is done.
template <class T>
DeviceMemory upload(const std::vector<T>& data) {
  DeviceMemory memory(data.size() * sizeof(T));
  if (data.empty()) return memory;
  check(cudaMemcpy(memory.get(), data.data(), memory.bytes(), cudaMemcpyHostToDevice), "upload");
  check(cudaStreamSynchronize(cudaStreamLegacy), "upload");
  return memory;
}

template <class T>
std::vector<T> download(const DeviceMemory& memory) {
  std::vector<T> data(memory.bytes() / sizeof(T));
  if (!data.empty())
    check(cudaMemcpy(data.data(), memory.get(), memory.bytes(), cudaMemcpyDeviceToHost), "download");
  return data;
}

/// An epoch word before the first epoch, and the words that waits share with the host.
class Watched {
 public:
  explicit Watched(std::uint64_t timeout_ms = 10'000)
      : epoch_(upload(std::vector<std::uint32_t>{~0u, 0})), shared_(sizeof(Shared)) {
    shared().timeout_ns = timeout_ms * 1'000'000;
  }

  struct Shared {
    std::uint32_t abort;
    Stall stall;
    std::uint64_t timeout_ns;
  };
  Shared& shared() const { return *shared_.get<Shared>(); }
  std::uint32_t* epoch() const { return epoch_.get<std::uint32_t>(); }
  Watch watch() const {
    return {epoch(), &shared().abort, &shared().stall, &shared().timeout_ns, epoch() + 1};
  }

 private:
  DeviceMemory epoch_;
  PinnedMemory shared_;
};

}  // namespace shingle::cuda::test
