// Barriers within a CTA. One instruction in each function.
#pragma once

#include <cstdint>

namespace shingle::cuda::ptx {

/// An mbarrier: an arrival counter in shared memory that changes phase once all have arrived.
using Barrier = std::uint64_t;

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void barrier_init(Barrier* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

/// Arrives with release semantics for the threads that wait for the phase.
__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// Returns true, with acquire semantics, if the phase of this parity is complete.
__device__ __forceinline__ bool barrier_test_wait(Barrier* barrier, std::uint32_t parity) {
  std::uint32_t complete;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(complete)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return complete != 0;
}

/// As barrier_test_wait(). From compute capability 9.0 on, the thread may sleep a while before it returns
/// false.
__device__ __forceinline__ bool barrier_try_wait(Barrier* barrier, std::uint32_t parity) {
  std::uint32_t complete;
  asm volatile(
      "{\n.reg .pred p;\n"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(complete)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return complete != 0;
}

__device__ __forceinline__ void barrier_wait(Barrier* barrier, std::uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

/// Named barrier `id` (0 is that of __syncthreads) for `threads` threads in whole warps.
__device__ __forceinline__ void named_barrier(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace shingle::cuda::ptx
