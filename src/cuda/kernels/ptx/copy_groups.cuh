// Groups of a thread's copies into shared memory (copy_async): each is waited for on its own.
#pragma once

namespace shingle::cuda::ptx {

/// Makes a group of this thread's copies since the last one.
__device__ __forceinline__ void close_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits for all of this thread's groups but the last `pending`.
template <int pending>
__device__ __forceinline__ void await_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace shingle::cuda::ptx
