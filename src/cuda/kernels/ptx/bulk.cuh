// Bulk copies by TMA: one instruction copies a range of global memory to shared memory or back, or adds a
// range of shared memory to global memory (bench/cuda only). From compute capability 9.0 on; earlier devices
// must not call these functions.
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

/// Starts to copy a multiple of 16 bytes of shared memory to memory of this device or a peer.
__device__ __forceinline__ void store_bulk(void* to, const void* from, std::uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
#endif
}

/// Makes writes to shared memory by this thread visible to bulk copies.
__device__ __forceinline__ void fence_async_shared() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Starts to add a multiple of 16 bytes of bf16 in shared memory to memory of this device or a peer, and
/// rounds to bf16. Each number is atomic.
__device__ __forceinline__ void add_bulk_bf16(void* to, const void* from, std::uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
#endif
}

/// Makes a group of the thread's bulk copies from shared memory that it has started since the last group.
__device__ __forceinline__ void commit_bulk() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

/// Waits until at most `Left` of the thread's groups have not arrived.
template <int Left>
__device__ __forceinline__ void wait_bulk() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Left) : "memory");
#endif
}

/// Waits until at most `Left` of the thread's groups still have to read shared memory.
template <int Left>
__device__ __forceinline__ void wait_bulk_reads() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
#endif
}

}  // namespace shingle::cuda::ptx
