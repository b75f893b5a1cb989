// A kernel that begins before the one in front of it in the stream has ended (programmatic dependent launch,
// from compute capability 9.0 on; before, kernels follow each other and these do nothing).
#pragma once

namespace shingle::cuda::ptx {

/// Whether the kernels of this build do so on a device of such a compute capability, and are not those for an
/// earlier one, translated.
inline bool launch_early(int major) {
#ifdef __CUDA_ARCH_LIST__
  for (const int compiled : {__CUDA_ARCH_LIST__})
    if (compiled >= 900 && major >= 9) return true;
#endif
  return false;
}

/// Once all CTAs have said so, or are done, the next kernel may begin on what is free, if it was launched to.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits for the kernel in front to end; what it wrote is visible to this thread then.
__device__ __forceinline__ void await_prerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace shingle::cuda::ptx
