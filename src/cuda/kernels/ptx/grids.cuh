// Programmatic dependent launch (PDL): a kernel may start before the previous kernel of the stream ends. From
// compute capability 9.0 on; on earlier devices kernels run one after another, and these functions do
// nothing.
#pragma once

namespace shingle::cuda::ptx {

/// True if this build has kernels compiled for PDL that a device of compute capability `major` runs. False if
/// the device would run code compiled for an earlier capability.
inline bool launch_early(int major) {
#ifdef __CUDA_ARCH_LIST__
  for (const int compiled : {__CUDA_ARCH_LIST__})
    if (compiled >= 900 && major >= 9) return true;
#endif
  return false;
}

/// The next kernel may start on free SMs once all CTAs have called this or ended, if its launch allows it.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the previous kernel has ended. Its writes are then visible to this thread.
__device__ __forceinline__ void await_prerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace shingle::cuda::ptx
