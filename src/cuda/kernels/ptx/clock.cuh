// Time on the device. One instruction a function.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// Nanoseconds; steps of up to a microsecond.
__device__ __forceinline__ std::uint64_t global_timer() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

/// Of the SM's clock; they wrap.
__device__ __forceinline__ std::uint32_t cycles() {
  std::uint32_t count;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(count));
  return count;
}

/// Leaves the SM to other warps for about so long, at most twice.
__device__ __forceinline__ void nano_sleep(std::uint32_t ns) {
  asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}

}  // namespace shingle::cuda::ptx
