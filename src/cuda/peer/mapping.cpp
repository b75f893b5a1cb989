#include "mapping.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <tuple>

#include "access.hpp"
#include "base/file.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/driver.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/tolerate.hpp"
#include "exported.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == std::tuple_size_v<decltype(Exported::handle)>);

/// Start of the allocation that holds an address.
char* base_of(void* at) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const auto range = driver_function<decltype(&cuMemGetAddressRange)>("cuMemGetAddressRange");
  if (range == nullptr || range(&base, &bytes, reinterpret_cast<CUdeviceptr>(at)) != CUDA_SUCCESS)
    throw InvalidArgument(fmt::format("{} is not an address of device memory", at));
  return reinterpret_cast<char*>(base);
}

Exported exported(void* at) {
  Exported how;
  if (at == nullptr) return how;
  how.any = true;
  char* const base = base_of(at);
  how.offset = static_cast<std::uint64_t>(static_cast<char*>(at) - base);
  cudaIpcMemHandle_t handle{};
  if (const cudaError_t result = cudaIpcGetMemHandle(&handle, base); result != cudaSuccess) {
    cudaGetLastError();
    throw Unsupported(fmt::format("other processes cannot access the matrix; allocate it with cudaMalloc: {}",
                                  cudaGetErrorString(result)));
  }
  std::memcpy(how.handle.data(), &handle, sizeof handle);
  return how;
}

/// Identifies a device among those of all hosts: boot id of the host, then PCI bus id.
std::string place_of(int device) {
  char bus_id[32] = {};
  check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device), "cudaDeviceGetPCIBusId");
  return read_file("/proc/sys/kernel/random/boot_id", 64) + bus_id;
}

/// Why `device` cannot access the device at place `other`; empty if it can.
std::string unreachable(int device, const std::string& own, const std::string& other) {
  constexpr std::size_t boot_id = 37;
  if (own.substr(0, boot_id) != other.substr(0, boot_id)) return "is on another host";
  const std::string bus_id = other.substr(boot_id);
  int there = 0, reaches = 1;
  if (cudaDeviceGetByPCIBusId(&there, bus_id.c_str()) != cudaSuccess) {
    cudaGetLastError();
    return fmt::format("has GPU {}, which is not visible here", bus_id);
  }
  if (there != device) check(cudaDeviceCanAccessPeer(&reaches, device, there), "cudaDeviceCanAccessPeer");
  return reaches != 0 ? "" : fmt::format("has GPU {}, to which there is no peer access", bus_id);
}

/// The first non-empty reason of any process.
std::string first_of(Processes& processes, const std::string& own, double timeout_us) {
  for (const std::string& why : processes.all_gather(own, timeout_us))
    if (!why.empty()) return why;
  return {};
}

}  // namespace

Mappings::~Mappings() {
  if (opened_.empty()) return;
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device_);
  for (void* const at : opened_) tolerate(cudaIpcCloseMemHandle(at), "cudaIpcCloseMemHandle");
  cudaSetDevice(before);
}

std::vector<std::vector<char*>> Mappings::exchange(Processes& processes, int own_rank,
                                                   const std::vector<void*>& own, double timeout_us) {
  check(cudaGetDevice(&device_), "cudaGetDevice");
  std::vector<Exported> given;
  for (void* const at : own) given.push_back(exported(at));
  const std::string bytes = packed(given);
  std::vector<std::vector<char*>> all;
  for (const std::string& theirs : processes.all_gather(bytes, timeout_us, bytes.size())) {
    const int rank = static_cast<int>(all.size());
    const auto addresses = parse_exported(theirs, own.size());
    if (!addresses)
      throw Error(fmt::format("rank {} sent {} bytes of memory addresses; expected {}", rank, theirs.size(),
                              bytes.size()),
                  rank);
    auto& reached = all.emplace_back();
    for (std::size_t i = 0; i < own.size(); ++i)
      reached.push_back(rank == own_rank ? static_cast<char*>(own[i]) : open((*addresses)[i]));
  }
  return all;
}

/// Returns null for a null address.
char* Mappings::open(const Exported& one) {
  if (!one.any) return nullptr;
  cudaIpcMemHandle_t handle{};
  std::memcpy(&handle, one.handle.data(), sizeof handle);
  void* base = nullptr;
  check(cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  opened_.push_back(base);
  return static_cast<char*>(base) + one.offset;
}

std::string no_mapping(Processes& processes, int own_rank, int device, double timeout_us) {
  const DeviceGuard guard(device);
  const std::string own = place_of(device);
  const std::vector<std::string> places = processes.all_gather(own, timeout_us);
  std::string why = places.size() > 1 ? forbidden_peer_access() : std::string();
  if (!why.empty()) why = fmt::format("rank {}: {}", own_rank, why);
  for (std::size_t rank = 0; rank < places.size() && why.empty(); ++rank)
    if (static_cast<int>(rank) != own_rank)
      if (const std::string reason = unreachable(device, own, places[rank]); !reason.empty())
        why = fmt::format("seen from rank {}, rank {} {}", own_rank, rank, reason);
  why = first_of(processes, why, timeout_us);
  if (!why.empty()) return why;
  const DeviceMemory sample(1);
  Mappings mappings;
  try {  // containers may forbid handles that the hardware supports
    mappings.exchange(processes, own_rank, {sample.get()}, timeout_us);
  } catch (const CudaError& error) {
    why = error.what();
  }
  why = first_of(processes, why, timeout_us);
  mappings = {};
  processes.barrier(timeout_us);  // no process may free memory that another has mapped
  return why;
}

}  // namespace shingle::cuda
