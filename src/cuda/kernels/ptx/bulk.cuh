// Bulk copies by TMA: one instruction copies a range of global memory to shared memory. From compute
// capability 9.0 on; earlier devices must not call these functions.
#pragma once

#include "barrier.cuh"

namespace shingle::cuda::ptx {

/// Makes barriers that this thread initialised visible to bulk copies.
__device__ __forceinline__ void fence_barrier_init() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// Arrives with release semantics, and lets the phase wait for so many bytes of bulk copies.
__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, std::uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
#endif
}

/// Starts to copy a multiple of 16 bytes between multiples of 16 bytes. The bytes arrive at the barrier.
__device__ __forceinline__ void load_bulk(void* to, const void* from, std::uint32_t bytes, Barrier* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#endif
}

}  // namespace shingle::cuda::ptx
