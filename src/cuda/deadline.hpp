// Points in time by which something has to be done.
#pragma once

#include <algorithm>
#include <chrono>

namespace shingle::cuda {

using Clock = std::chrono::steady_clock;

/// How long who waits for devices sleeps between two looks at them, and at the rest of the world.
inline constexpr std::chrono::microseconds nap{20};
inline constexpr std::chrono::milliseconds attention{5};

/// A point in time, `us` from now; beyond three years it is three years: the sum must not overflow.
inline Clock::time_point deadline_in(double us) {
  constexpr double longest_us = 1e14;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double, std::micro>(std::min(us, longest_us)));
}

}  // namespace shingle::cuda
