// Kernels of one warp, or one thread, between the steps of a lane.
//
// Memory order: a kernel begins after everything before it in its stream is done, so that the release of
// `notify` and `set` covers it all; what follows a kernel in its stream comes after the acquire of `await`.
#include "sync.hpp"
#include "wait.cuh"

namespace shingle::cuda {
namespace {

struct Targets {
  Target of[most_targets];
  int count;
};

__global__ void begin_kernel(std::uint32_t* epoch) {
  *epoch += 1;
}

__global__ void __launch_bounds__(32)
    await_kernel(const __grid_constant__ Targets targets, const Watch watch) {
  const std::uint32_t epoch = *watch.epoch;
  for (int i = static_cast<int>(threadIdx.x); i < targets.count; i += 32)
    if (!wait_for(targets.of[i], epoch, watch)) return;
}

__global__ void notify_kernel(std::uint32_t* counter, std::uint32_t value, bool system) {
  if (system) {
    ptx::add_release_sys(counter, value);
  } else {
    ptx::add_release_gpu(counter, value);
  }
}

__global__ void set_kernel(std::uint32_t* counter, std::uint32_t value, std::uint32_t growth,
                           const std::uint32_t* epoch) {
  ptx::store_release_sys(counter, value + *epoch * growth);
}

}  // namespace

cudaError_t launch_begin(std::uint32_t* epoch, cudaStream_t stream) {
  begin_kernel<<<1, 1, 0, stream>>>(epoch);
  return cudaGetLastError();
}

cudaError_t launch_await(const Target* targets, int count, const Watch& watch, cudaStream_t stream) {
  if (count < 0 || count > most_targets) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  Targets all{};
  all.count = count;
  for (int i = 0; i < count; ++i) all.of[i] = targets[i];
  await_kernel<<<1, 32, 0, stream>>>(all, watch);
  return cudaGetLastError();
}

cudaError_t launch_notify(std::uint32_t* counter, std::uint32_t value, bool system, cudaStream_t stream) {
  notify_kernel<<<1, 1, 0, stream>>>(counter, value, system);
  return cudaGetLastError();
}

cudaError_t launch_set(std::uint32_t* counter, std::uint32_t value, std::uint32_t growth, const Watch& watch,
                       cudaStream_t stream) {
  set_kernel<<<1, 1, 0, stream>>>(counter, value, growth, watch.epoch);
  return cudaGetLastError();
}

cudaError_t preload_sync() {
  const void* const kernels[] = {
      reinterpret_cast<const void*>(begin_kernel), reinterpret_cast<const void*>(await_kernel),
      reinterpret_cast<const void*>(notify_kernel), reinterpret_cast<const void*>(set_kernel)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

}  // namespace shingle::cuda
