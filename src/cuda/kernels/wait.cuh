// The wait of device code: every kernel awaits counters through this function.
#pragma once

#include "cuda/kernels/ptx/clock.cuh"
#include "cuda/kernels/ptx/memory.cuh"
#include "hooks.hpp"

namespace shingle::cuda {

inline constexpr std::uint32_t poll_pause_ns = 20;
// Polls between two checks of `abort` and of the deadline. `abort` is in host memory: a check is slow, and
// all SMs share one bus.
inline constexpr std::uint32_t polls_between_looks = 1024;

/// Records the wait that passed its deadline, then ends the rank's other waits. Only the first wait of the
/// device to fail, which gets the claim, does so. A thread that sees `abort` raised by a device therefore
/// reads a complete record.
__device__ __forceinline__ void give_up(const Target& target, std::uint32_t wanted, std::uint32_t seen,
                                        const Watch& watch) {
  if (atomicExch(watch.claim, 1u) != 0) return;
  volatile Stall& stall = *watch.stall;
  stall.seen = seen;
  stall.wanted = wanted;
  stall.counter = target.counter;
  ptx::store_release_sys(watch.abort, 1u);
}

/// Waits until the counter reaches its target in this epoch; the comparison is modulo 2³². Returns false if
/// the rank's waits were ended, by the host, by another wait or because this wait passed its deadline.
///
/// Acquires at system scope. Afterwards this thread, and threads after a barrier with it, see all writes that
/// the adders released. TMA loads also need fence_proxy_async_global().
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

/// True if wait_for() would return at once. Acquires then.
__device__ __forceinline__ bool has_reached(const Target& target, std::uint32_t epoch) {
  if (target.counter == nullptr) return true;
  const std::uint32_t wanted = target.target + epoch * target.growth;
  return static_cast<std::int32_t>(ptx::load_acquire_sys(target.counter) - wanted) >= 0;
}

}  // namespace shingle::cuda
