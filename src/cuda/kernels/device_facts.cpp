#include "device_facts.hpp"

#include <algorithm>
#include <array>
#include <mutex>

namespace shingle::cuda {

cudaError_t find_device_facts(DeviceFacts& facts) {
  constexpr std::size_t most_devices = 64;
  struct Known {
    std::once_flag once;
    cudaError_t error = cudaSuccess;
    DeviceFacts facts;
  };
  static std::array<Known, most_devices> known;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (static_cast<std::size_t>(device) >= most_devices) return cudaErrorInvalidDevice;
  Known& at = known[static_cast<std::size_t>(device)];
  std::call_once(at.once, [&] {
    const auto ask = [&](cudaDeviceAttr which, int& value) {
      if (at.error == cudaSuccess) at.error = cudaDeviceGetAttribute(&value, which, device);
    };
    ask(cudaDevAttrMultiProcessorCount, at.facts.sms);
    ask(cudaDevAttrComputeCapabilityMajor, at.facts.major);
    ask(cudaDevAttrComputeCapabilityMinor, at.facts.minor);
    ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, at.facts.most_shared);
  });
  facts = at.facts;
  return at.error;
}

cudaError_t find_cta_count(std::int64_t threads, int cta_threads, unsigned& ctas) {
  DeviceFacts facts;
  if (const cudaError_t error = find_device_facts(facts); error != cudaSuccess) return error;
  constexpr std::int64_t sm_threads = 2048;
  ctas = static_cast<unsigned>(
      std::min((threads + cta_threads - 1) / cta_threads, sm_threads / cta_threads * facts.sms));
  return cudaSuccess;
}

}  // namespace shingle::cuda
