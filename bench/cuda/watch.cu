// Phases: each thread polls every 1024th counter, all of its counters at once, and records the time of each
// change. A poll takes most of a microsecond, however many loads it has.
//
// Memory order: loads are relaxed, as the kernel reads nothing except the counters. The add to `ready` is a
// release at system scope.
//
// Checks: at most most_watched counters.
#include "cuda/kernels/count.cuh"
#include "cuda/kernels/ptx/clock.cuh"
#include "watch.hpp"

namespace shingle::cuda {
namespace {

constexpr int threads = 1024;
constexpr int each = most_watched / threads;

__global__ void __launch_bounds__(threads)
    watch_kernel(const std::uint32_t* counts, std::int32_t count, std::uint64_t* seen_ns,
                 std::uint32_t* ready, std::uint64_t timeout_ns) {
  const int first = static_cast<int>(threadIdx.x);
  std::uint32_t pending = 0;  // a bit for each counter of this thread
  for (int i = 0; i < each; ++i) pending |= first + i * threads < count ? 1u << i : 0u;
  const std::uint64_t deadline = ptx::global_timer() + timeout_ns;
  if (first == 0) add_release(ready, 1, true);
  while (pending != 0 && ptx::global_timer() < deadline) {
    std::uint32_t seen[each], changed = 0;
#pragma unroll
    for (int i = 0; i < each; ++i)
      seen[i] = (pending >> i & 1) != 0 ? ptx::load_relaxed_sys(counts + first + i * threads) : 0;
#pragma unroll
    for (int i = 0; i < each; ++i) changed |= seen[i] != 0 ? 1u << i : 0u;
    if (changed == 0) continue;
    const std::uint64_t now = ptx::global_timer();  // the branch above has waited for the loads
#pragma unroll
    for (int i = 0; i < each; ++i)
      if ((changed >> i & 1) != 0) seen_ns[first + i * threads] = now;
    pending &= ~changed;
  }
}

}  // namespace

cudaError_t launch_watch(const std::uint32_t* counts, std::int32_t count, std::uint64_t* seen_ns,
                         std::uint32_t* ready, std::uint64_t timeout_ns, cudaStream_t stream) {
  if (count < 0 || count > most_watched) return cudaErrorInvalidValue;
  watch_kernel<<<1, threads, 0, stream>>>(counts, count, seen_ns, ready, timeout_ns);
  return cudaGetLastError();
}

cudaError_t preload_watch() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, watch_kernel);
}

}  // namespace shingle::cuda
