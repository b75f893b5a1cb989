// Groups of a thread's asynchronous copies to shared memory (copy_async). A thread can wait for each group.
#pragma once

namespace shingle::cuda::ptx {

/// Closes a group: this thread's copies since the last group.
__device__ __forceinline__ void close_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits for all groups of this thread except the last `pending`.
template <int pending>
__device__ __forceinline__ void await_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace shingle::cuda::ptx
