// Loads, stores and copies in shared memory, by 32-bit address.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

__device__ __forceinline__ uint4 ld_shared_v4(std::uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

__device__ __forceinline__ char* ld_shared_pointer(std::uint32_t address) {
  std::uint64_t x;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(address) : "memory");
  return reinterpret_cast<char*>(x);
}

__device__ __forceinline__ void st_shared_v2(std::uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void st_shared_v4(std::uint32_t address, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

/// Starts an asynchronous copy of 16 bytes from global to shared memory, past L1 and registers.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// Arrives at an mbarrier once all copies that this thread has started are done. They are then visible to the
/// threads that wait for the phase.
__device__ __forceinline__ void copies_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Waits for this thread's copies. They are then visible to this thread only.
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace shingle::cuda::ptx
