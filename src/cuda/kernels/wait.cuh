// The one way in which device code waits for a count.
#pragma once

#include "cuda/kernels/ptx/clock.cuh"
#include "cuda/kernels/ptx/memory.cuh"
#include "hooks.hpp"

namespace shingle::cuda {

inline constexpr std::uint32_t poll_pause_ns = 20;
inline constexpr std::uint32_t polls_between_looks = 1024;  // `abort` lies in the host's memory: a look is
                                                            // slow, and those of all SMs share one bus

/// Leaves behind what a wait waited for, and then ends the rank's other waits. The first of the device's
/// waits to fail does so, the one that gets the claim: whoever sees `abort` raised by a device reads all of
/// it.
__device__ __forceinline__ void give_up(const Target& target, std::uint32_t wanted, std::uint32_t seen,
                                        const Watch& watch) {
  if (atomicExch(watch.claim, 1u) != 0) return;
  volatile Stall& stall = *watch.stall;
  stall.seen = seen;
  stall.wanted = wanted;
  stall.counter = target.counter;
  ptx::store_release_sys(watch.abort, 1u);
}

/// Waits until the count is reached in this epoch, cyclically; false if the rank's waits were ended, by
/// somebody else or because this one passed its deadline. Acquires at system scope: afterwards this thread,
/// and who is behind a barrier with it, reads what was released by the adders. What TMA is to read needs
/// fence_proxy_async_global besides.
__device__ __forceinline__ bool wait_for(const Target& target, std::uint32_t epoch, const Watch& watch) {
  if (target.counter == nullptr) return true;
  const std::uint32_t wanted = target.target + epoch * target.growth;
  std::uint64_t deadline = 0;
  for (std::uint32_t polls = 1;; ++polls) {
    const std::uint32_t seen = ptx::load_acquire_sys(target.counter);
    if (static_cast<std::int32_t>(seen - wanted) >= 0) return true;
    if (polls % polls_between_looks == 0) {
      const std::uint64_t now = ptx::global_timer();
      if (deadline == 0) deadline = now + *watch.timeout_ns;
      if (now >= deadline) give_up(target, wanted, seen, watch);
      if (ptx::load_relaxed_sys(watch.abort) != 0) return false;
    }
    ptx::nano_sleep(poll_pause_ns);
  }
}

}  // namespace shingle::cuda
