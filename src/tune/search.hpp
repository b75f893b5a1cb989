// Predictive search of a partition of waves into groups (FlashOverlap §4.1).
#pragma once

#include <cstdint>
#include <vector>

#include "waves.hpp"

namespace shingle {

/// The most waves of the first group, before which nothing is sent, and of the last, which is sent when there
/// is nothing left to compute (§4.1.3). 0: any number. Groups of one wave are within all bounds.
struct GroupBounds {
  std::int64_t first = 4;
  std::int64_t last = 12;
};

/// A partition that was chosen.
struct Partition {
  std::vector<std::int64_t> group_waves{};  ///< for Params
  double us = 0;                            ///< predicted
  double candidates = 0;                    ///< partitions that it was chosen from
};

/// Up to so many waves any of them may end a group. Beyond, between the head and the tail that the bounds are
/// about, only every n-th may, n being the smallest with which no more remain.
inline constexpr std::int64_t fine_waves = 128;

/// The fastest of all partitions within the bounds, and of those that take equally long one with fewest
/// groups. Exact, by dynamic programming: O(waves²) and as much for each group. Throws InvalidArgument where
/// the model has no waves or a bound is negative.
Partition search(const WaveModel& model, const GroupBounds& bounds = {});

/// The same by predicting all 2^(waves - 1) of them, one by one: what search() is held against. Throws
/// InvalidArgument also where there are more than 24 waves.
Partition search_exhaustively(const WaveModel& model, const GroupBounds& bounds = {});

/// Groups of `size` waves, the last with what remains (§6.5).
std::vector<std::int64_t> equal_groups(std::int64_t waves, std::int64_t size);

}  // namespace shingle
