#include "access.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>

#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/driver.hpp"

namespace shingle::cuda {
namespace {

template <class Visit>
void for_each_pair(const std::vector<int>& devices, Visit&& visit) {
  for (const int from : devices)
    for (const int to : devices)
      if (from != to) visit(from, to);
}

}  // namespace

std::string forbidden_peer_access() {
  constexpr const char* variable = "NCCL_P2P_DISABLE";
  const char* const value = std::getenv(variable);
  const bool set = value != nullptr && std::strtol(value, nullptr, 0) == 1;  // as NCCL reads it
  return set ? fmt::format("{} is set", variable) : std::string();
}

std::string no_peer_access(const std::vector<int>& devices) {
  std::string why = devices.size() > 1 ? forbidden_peer_access() : std::string();
  for_each_pair(devices, [&](int from, int to) {
    int reaches = 0;
    check(cudaDeviceCanAccessPeer(&reaches, from, to), "cudaDeviceCanAccessPeer");
    if (reaches == 0 && why.empty()) why = fmt::format("GPU {} has no peer access to GPU {}", from, to);
  });
  return why;
}

void enable_peer_access(const std::vector<int>& devices) {
  for_each_pair(devices, [](int from, int to) {
    const DeviceGuard guard(from);
    const cudaError_t result = cudaDeviceEnablePeerAccess(to, 0);
    cudaGetLastError();  // another part of the process may have enabled it already
    if (result != cudaErrorPeerAccessAlreadyEnabled) check(result, "cudaDeviceEnablePeerAccess");
  });
}

bool shared_with_peers(const void* memory) {
  const auto attribute = driver_function<decltype(&cuPointerGetAttribute)>("cuPointerGetAttribute");
  int shared = 0;
  return attribute != nullptr &&
         attribute(&shared, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                   reinterpret_cast<CUdeviceptr>(memory)) == CUDA_SUCCESS &&
         shared != 0;
}

}  // namespace shingle::cuda
