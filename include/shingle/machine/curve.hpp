// Curves: how long a collective takes, from samples of it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace shingle {

/// What a library moves between ranks at once.
enum class Traffic : std::uint8_t { allreduce, reducescatter, allgather, alltoall };
std::string_view name(Traffic traffic);
/// Throws InvalidArgument.
Traffic parse_traffic(std::string_view text);

/// Bytes over the busiest link in each direction, for each byte of the whole matrix, by an algorithm that
/// wastes nothing: 2(n−1)/n for an allreduce, (n−1)/n for the others (nccl-tests' bus bandwidth).
double wire_factor(Traffic traffic, int ranks);

/// One sample: `bytes` of the whole matrix (an allreduce's or reduce-scatter's input, an all-gather's output,
/// what one rank of an all-to-all sends), and the time.
struct Sample {
  double bytes = 0;
  double us = 0;
  bool operator==(const Sample&) const = default;
};

/// Samples of a collective of `ranks` that occupies `workers` of each (0: as many as the library likes), by
/// ascending bytes.
struct Curve {
  Traffic traffic = Traffic::allreduce;
  std::int32_t ranks = 2;
  std::int32_t workers = 0;
  std::vector<Sample> samples;

  /// Between samples straight in log bytes and log time; below the first its time, which is latency; beyond
  /// the last at the rate of the last (FlashOverlap §4.1.2: bandwidth falls off below some size). Never
  /// falls: where a sample took less time than one of fewer bytes, that is noise, and the longer time holds.
  double us(double bytes) const;
  bool operator==(const Curve&) const = default;
};

/// The time of a collective from the curves that are nearest to it: of the same traffic, of the nearest
/// number of ranks (scaled by what goes over the wire), between the two nearest numbers of workers straight
/// in logarithms (in proportion below the fewest). Where these ranks have the library's own choice alone, it
/// is no faster than so many workers of other ranks. Negative where no curve has this traffic.
double collective_us(const std::vector<Curve>& curves, Traffic traffic, int ranks, int workers, double bytes);

}  // namespace shingle
