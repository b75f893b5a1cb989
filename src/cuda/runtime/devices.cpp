#include "devices.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "backend/launch.hpp"
#include "cuda/kernels/gemm.hpp"
#include "cuda/nccl/communicators.hpp"
#include "cuda/peer/access.hpp"
#include "cuda/raii/check.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "shingle/cuda/cuda.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle {
namespace {

cudaDeviceProp properties(int device) {
  cudaDeviceProp found{};
  cuda::check(cudaGetDeviceProperties(&found, device), "cudaGetDeviceProperties");
  return found;
}

/// Text of a CUDA version number: 13000 gives "13.0".
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// Name of a kernel family and its tile shapes, each once: "sm80 128x256 128x128".
std::string tiles_text(cuda::GemmFamily family) {
  std::string text = cuda::name(family);
  for (const cuda::GemmInstance& one : cuda::gemm_instances(family))
    if (const auto tile = fmt::format(" {}x{}", one.tile.rows, one.tile.cols);
        (text + ' ').find(tile + ' ') == std::string::npos)
      text += tile;
  return text;
}

/// A profile from the device's properties; assumed values for the rest.
Machine generic(const cudaDeviceProp& device, int index) {
  int clock_khz = 0, bus_bits = 0;
  cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, index);
  cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, index);
  Machine machine;
  machine.name = device.name;
  machine.tile_rows = 128;
  machine.tile_cols = device.major >= 9 ? 256 : 128;
  // Some kernels for Hopper have tiles only in clusters of two along m.
  if (device.major == 9) machine.order = {.raster = Raster::along_m, .swizzle = 8, .cluster_m = 2};
  machine.collective_workers = 16;
  machine.memory_gbps = 2.0 * clock_khz * 1e3 * bus_bits / 8 / 1e9;  // double data rate
  machine.launch_us = 4;
  machine.signal_us = 4;
  machine.sources = {{"tile", Origin::assumed, "computes well on most GPUs"},
                     {"collective_workers", Origin::assumed, "most that NCCL takes by itself, about"},
                     {"memory_gbps", Origin::datasheet, "clock and width that the driver tells"},
                     {"launch_us", Origin::assumed, ""},
                     {"signal_us", Origin::assumed, ""}};
  return machine;
}

Machine shipped_or_generic(const cudaDeviceProp& device, int index, int ranks) {
  if (std::string_view(device.name).find("H200") == std::string_view::npos) return generic(device, index);
  try {
    Machine machine = machine_from_spec("h200x8");
    machine.name = fmt::format("h200x{}", ranks);
    return machine;
  } catch (const Error&) {  // the profile is not installed
    return generic(device, index);
  }
}

/// True if all ranks are on this host and all their devices have peer access, as CudaWorld finds it.
bool reach_each_other(int first, int ranks) {
  const Launched launched = find_launcher();
  if (launched.local_size < launched.size || first + ranks > cuda::require_gpu()) return false;
  std::vector<int> devices(static_cast<std::size_t>(ranks));
  std::iota(devices.begin(), devices.end(), first);
  return cuda::no_peer_access(devices).empty();
}

}  // namespace

namespace cuda {

int count_gpus(std::string& why) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (result != cudaSuccess) why = cudaGetErrorString(result);
  if (result == cudaSuccess && count == 0) why = "the driver finds none";
  return result == cudaSuccess ? count : 0;
}

int require_gpu() {
  std::string why;
  const int count = count_gpus(why);
  if (count == 0) throw Unsupported("no GPU here: " + why);
  return count;
}

GemmFamily family_of(int device) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return gemm_family(major, minor);
}

}  // namespace cuda

std::vector<TileShape> cuda_tiles(const CudaOptions& options) {
  const int index = options.first_device < cuda::require_gpu() ? options.first_device : 0;
  std::vector<TileShape> tiles;
  for (const cuda::GemmInstance& instance : cuda::gemm_instances(cuda::family_of(index))) {
    const TileShape shape{instance.tile.rows, instance.tile.cols};
    if (std::ranges::find(tiles, shape) == tiles.end()) tiles.push_back(shape);
  }
  return tiles;
}

Machine cuda_machine(int ranks, const CudaOptions& options) {
  const int index = options.first_device < cuda::require_gpu() ? options.first_device : 0;
  const cudaDeviceProp device = properties(index);
  Machine machine = shipped_or_generic(device, index, ranks);
  machine.workers = device.multiProcessorCount;
  machine.ranks = ranks;
  machine.peer_memory = reach_each_other(options.first_device, ranks);
  return machine;
}

CudaInfo cuda_info() {
  CudaInfo info;
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) info.driver = version_text(driver);
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) info.runtime = version_text(runtime);
  try {
    info.nccl = cuda::nccl_version();
  } catch (const Unsupported& why) {
    info.nccl = fmt::format("none ({})", why.what());
  }
  for (const cuda::GemmFamily family : cuda::gemm_families)
    if (!cuda::gemm_instances(family).empty()) info.gemm.push_back(tiles_text(family));
  const int count = cuda::count_gpus(info.missing);
  for (int index = 0; index < count; ++index) {
    const cudaDeviceProp device = properties(index);
    info.devices.push_back({device.name, device.multiProcessorCount, device.major, device.minor,
                            cuda::name(cuda::gemm_family(device.major, device.minor)),
                            static_cast<double>(device.totalGlobalMem)});
  }
  return info;
}

std::string describe(const CudaInfo& info) {
  std::string text;
  for (std::size_t i = 0; i < info.devices.size(); ++i) {
    const CudaDevice& device = info.devices[i];
    text +=
        fmt::format("gpu {}: {}, {} SMs, compute capability {}.{}, {}, GEMM kernels {}\n", i, device.name,
                    device.sms, device.major, device.minor, format_bytes(device.memory_bytes), device.gemm);
  }
  if (info.devices.empty()) text = fmt::format("gpu: none, {}\n", info.missing);
  for (const std::string& kernels : info.gemm) text += fmt::format("GEMM kernels: {}\n", kernels);
  return text + fmt::format("cuda: runtime {}, driver {}\nnccl: {}\n", info.runtime,
                            info.driver.empty() ? "none" : info.driver, info.nccl);
}

}  // namespace shingle
