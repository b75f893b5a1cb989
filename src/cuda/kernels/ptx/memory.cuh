// Loads, stores, counts and fences whose order or caching C++ cannot say. One instruction a function.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// Reads a count: what its writer did before its release at the same scope is visible afterwards.
__device__ __forceinline__ std::uint32_t load_acquire_gpu(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ std::uint32_t load_acquire_sys(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

/// Reads a word that others write at any time, without ordering anything.
__device__ __forceinline__ std::uint32_t load_relaxed_sys(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at));
  return value;
}

/// Adds to a count once what this thread did, or saw through a barrier, is visible at the scope.
__device__ __forceinline__ void add_release_gpu(std::uint32_t* at, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void add_release_sys(std::uint32_t* at, std::uint32_t value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void store_release_sys(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void fence_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/// Between an acquire and TMA's reads of what was stored by plain instructions.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// 16 bytes that are read once: they take no room in L1, and may have been written while the kernel runs.
__device__ __forceinline__ uint4 load_once(const void* at) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at));
  return value;
}

/// 16 bytes that are read again soon.
__device__ __forceinline__ uint4 load(const void* at) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at));
  return value;
}

__device__ __forceinline__ void store(void* at, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

/// Asks for a line of 128 bytes, which somebody on this SM will load soon.
__device__ __forceinline__ void prefetch_l1(const void* at) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

}  // namespace shingle::cuda::ptx
