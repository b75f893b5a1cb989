// Loads, stores, adds and fences with an order or a cache policy that C++ cannot express. One instruction in
// each function.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// Reads a counter. Writes before the matching release at the same scope are visible afterwards.
__device__ __forceinline__ std::uint32_t load_acquire_gpu(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ std::uint64_t load_acquire_gpu(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ std::uint32_t load_acquire_sys(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ std::uint64_t load_acquire_sys(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

/// Reads a word that others may write at any time. Orders nothing.
__device__ __forceinline__ std::uint32_t load_relaxed_sys(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at));
  return value;
}

/// Reads 16 bytes that others may write at any time, each 32-bit word for itself. Orders nothing.
__device__ __forceinline__ uint4 load_relaxed_sys(const uint4* at) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at));
  return value;
}

/// Writes 16 bytes that others may read at any time, each 32-bit word for itself. Orders nothing.
__device__ __forceinline__ void store_relaxed_sys(uint4* at, uint4 value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w));
}

/// Adds to a counter after all writes of this thread, and writes that reached it through a barrier, are
/// visible at the scope.
__device__ __forceinline__ void add_release_gpu(std::uint32_t* at, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void add_release_sys(std::uint32_t* at, std::uint32_t value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/// Writes `value` if the word is `expected`; acquires and releases. Returns what the word was.
__device__ __forceinline__ std::uint64_t exchange_if_equal_gpu(std::uint64_t* at, std::uint64_t expected,
                                                               std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(at), "l"(expected), "l"(value)
               : "memory");
  return before;
}

__device__ __forceinline__ void store_release_sys(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void store_release_sys(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ __forceinline__ void fence_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/// Orders an acquire before TMA loads of data that plain instructions stored (generic to async proxy).
__device__ __forceinline__ void fence_proxy_async_global() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

/// Loads 16 bytes that are read once: not kept in L1. The load is coherent: the data may have been written
/// while the kernel runs.
__device__ __forceinline__ uint4 load_once(const void* at) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at));
  return value;
}

/// Loads 16 bytes that are read again soon.
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

/// Prefetches a line of 128 bytes to L1, for a thread of this SM.
__device__ __forceinline__ void prefetch_l1(const void* at) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

}  // namespace shingle::cuda::ptx
