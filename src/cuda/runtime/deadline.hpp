// Deadlines, and the intervals at which the host polls.
#pragma once

#include <algorithm>
#include <chrono>

#include "shingle/base/error.hpp"

namespace shingle::cuda {

using Clock = std::chrono::steady_clock;

/// Pause of a host thread between two polls of a device.
inline constexpr std::chrono::microseconds nap{20};
/// Interval at which a waiting host thread checks for failures of other ranks and processes.
inline constexpr std::chrono::milliseconds attention{5};

/// Time that an epoch may take beyond the timeout of one wait. Waits on the device time out first, as their
/// error names the counter.
inline constexpr double epoch_slack_us = 5e5;
/// Shortest deadline for NCCL to connect ranks: connecting takes NCCL seconds.
inline constexpr double least_connect_us = 30e6;

/// A wait on a device, or for NCCL, has passed its deadline. The rank that causes it is not known yet.
class UnnamedTimeout : public Timeout {
 public:
  using Timeout::Timeout;
};

/// The point in time `us` from now, at most three years from now, so that the sum does not overflow.
inline Clock::time_point deadline_in(double us) {
  constexpr double longest_us = 1e14;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double, std::micro>(std::min(us, longest_us)));
}

}  // namespace shingle::cuda
