// Clusters of CTAs. Before compute capability 9.0 a cluster is a CTA.
#pragma once

#include <cstdint>

#include "barrier.cuh"

namespace shingle::cuda::ptx {

/// Index of this CTA in its cluster.
__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

/// Number of CTAs in the cluster.
__device__ __forceinline__ std::uint32_t cluster_ctas() {
  std::uint32_t ctas = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
#endif
  return ctas;
}

/// Stores to the shared memory of a CTA of the cluster, at the place that `at` has in this CTA's.
__device__ __forceinline__ void store_in_cluster(float* at, std::uint32_t cta, float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.f32 [remote], %2;\n}" ::"r"(shared_address(at)),
      "r"(cta), "f"(value)
      : "memory");
#else
  *at = value;
#endif
}

/// Loads from the shared memory of a CTA of the cluster, at the place that `at` has in this CTA's.
__device__ __forceinline__ std::uint32_t load_in_cluster(const std::uint32_t* at, std::uint32_t cta) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  std::uint32_t value;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.u32 %0, [remote];\n}"
      : "=r"(value)
      : "r"(shared_address(at)), "r"(cta)
      : "memory");
  return value;
#else
  return *at;
#endif
}

/// Arrives at the cluster's barrier, with release semantics. Each arrival needs a cluster_wait() of the
/// thread.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

/// Waits, with acquire semantics, until all threads of the cluster have arrived.
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

}  // namespace shingle::cuda::ptx
