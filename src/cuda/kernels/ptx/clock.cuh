// Time on the device. One instruction in each function.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// Nanoseconds. The timer advances in steps of up to a microsecond.
__device__ __forceinline__ std::uint64_t global_timer() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

/// Cycles of the SM's clock. The count wraps.
__device__ __forceinline__ std::uint32_t cycles() {
  std::uint32_t count;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(count));
  return count;
}

/// Suspends the thread for about `ns` nanoseconds, at most twice that.
__device__ __forceinline__ void nano_sleep(std::uint32_t ns) {
  asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}

}  // namespace shingle::cuda::ptx
