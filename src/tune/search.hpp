// Predictive search of a partition of waves into groups (FlashOverlap §4.1).
#pragma once

#include <cstdint>
#include <vector>

#include "waves.hpp"

namespace shingle {

/// Max. waves of the first group, before which nothing is sent, and of the last group, which is sent when
/// nothing is left to compute (§4.1.3). 0: any number. Groups of one wave are within all bounds.
struct GroupBounds {
  std::int64_t first = 4;
  std::int64_t last = 12;
};

/// The result of a search.
struct Partition {
  std::vector<std::int64_t> group_waves{};  ///< for Params
  double us = 0;                            ///< predicted
  double candidates = 0;                    ///< number of partitions in the search space
};

/// Up to this many waves, any wave may end a group. Beyond it, only every n-th wave may, between the head and
/// the tail that the bounds cover. n is the smallest that leaves at most this many.
inline constexpr std::int64_t fine_waves = 128;

/// The fastest partition within the bounds; among equally fast ones, the one with the fewest groups. Exact,
/// by dynamic programming, in O(waves²) for each number of groups. Throws InvalidArgument if the model has no
/// waves or a bound is negative.
Partition search(const WaveModel& model, const GroupBounds& bounds = {});

/// As search(), but predicts all 2^(waves - 1) partitions one by one; the reference for search(). Throws
/// InvalidArgument also for more than 24 waves.
Partition search_exhaustively(const WaveModel& model, const GroupBounds& bounds = {});

/// Groups of `size` waves; the last takes the remainder (§6.5).
std::vector<std::int64_t> equal_groups(std::int64_t waves, std::int64_t size);

}  // namespace shingle
