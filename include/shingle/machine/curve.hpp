// Curves: the time of a collective, from samples.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace shingle {

/// Kind of a collective, for its time.
enum class Traffic : std::uint8_t { allreduce, reducescatter, allgather, alltoall };
inline constexpr int traffics = 4;
inline constexpr Traffic all_traffic[traffics] = {Traffic::allreduce, Traffic::reducescatter,
                                                  Traffic::allgather, Traffic::alltoall};
std::string_view name(Traffic traffic);
/// Inverse of name(). Throws InvalidArgument.
Traffic parse_traffic(std::string_view text);

/// Bytes over the busiest link in each direction per byte of the whole matrix, for a bandwidth-optimal
/// algorithm. It is 2(n−1)/n for an allreduce and (n−1)/n for the others, as in the bus bandwidth of
/// nccl-tests.
double wire_factor(Traffic traffic, int ranks);

/// One sample: bytes of the whole matrix, and the time. The whole matrix is the input of an allreduce or
/// reduce-scatter, the output of an all-gather, or what one rank of an all-to-all sends.
struct Sample {
  double bytes = 0;
  double us = 0;
  bool operator==(const Sample&) const = default;
};

/// Samples of a collective of `ranks` ranks, by ascending bytes. It occupies `workers` workers of each rank;
/// 0: as many as NCCL chooses.
struct Curve {
  Traffic traffic = Traffic::allreduce;
  std::int32_t ranks = 2;
  std::int32_t workers = 0;
  std::vector<Sample> samples;

  /// Time of a collective of `bytes`. Between samples it is interpolated linearly in log bytes and log time.
  /// Below the first sample it is the first time, a latency. Beyond the last sample the last rate holds
  /// (FlashOverlap §4.1.2: bandwidth drops below some size).
  ///
  /// The time never falls with more bytes: a sample that is faster than one of fewer bytes is noise, and the
  /// longer time holds.
  double us(double bytes) const;
  bool operator==(const Curve&) const = default;
};

/// Time of a collective from the nearest curves of the same traffic. It takes the nearest number of ranks,
/// scaled by the bytes on the wire. It interpolates between the two nearest numbers of workers in logarithms;
/// below the fewest workers it is inversely proportional.
///
/// If the curves of these ranks have NCCL's own choice of workers only, the time is at least that of
/// `workers` workers on other ranks. Negative if no curve has this traffic.
double collective_us(const std::vector<Curve>& curves, Traffic traffic, int ranks, int workers, double bytes);

}  // namespace shingle
