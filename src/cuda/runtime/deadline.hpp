// Points in time by which something has to be done.
#pragma once

#include <algorithm>
#include <chrono>

#include "shingle/base/error.hpp"

namespace shingle::cuda {

using Clock = std::chrono::steady_clock;

/// How long who waits for devices sleeps between two looks at them, and at the rest of the world.
inline constexpr std::chrono::microseconds nap{20};
inline constexpr std::chrono::milliseconds attention{5};

/// By how much an epoch may take longer than one wait of it: waits on the device say more, and come first.
inline constexpr double epoch_slack_us = 2e6;
/// Deadline of what NCCL does to connect ranks, at least: its own work takes seconds.
inline constexpr double least_connect_us = 30e6;

/// A wait on a device, or for NCCL, has passed its deadline. Who keeps it waiting is still to be found out.
class UnnamedTimeout : public Timeout {
 public:
  using Timeout::Timeout;
};

/// A point in time, `us` from now; beyond three years it is three years: the sum must not overflow.
inline Clock::time_point deadline_in(double us) {
  constexpr double longest_us = 1e14;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double, std::micro>(std::min(us, longest_us)));
}

}  // namespace shingle::cuda
