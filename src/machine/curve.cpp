#include "shingle/machine/curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "shingle/base/error.hpp"

namespace shingle {
namespace {

constexpr std::array<std::string_view, 4> names{"allreduce", "reducescatter", "allgather", "alltoall"};

/// The value at x of the line through two points, all in logarithms.
double between(double x, double x0, double y0, double x1, double y1) {
  const double share = std::log(x / x0) / std::log(x1 / x0);
  return y0 * std::pow(y1 / y0, share);
}

/// How far two numbers of ranks are from each other.
double distance(int a, int b) {
  return std::abs(std::log2(static_cast<double>(a) / b));
}

/// The number of ranks nearest to this one that has curves of at least so many workers; 0: none has.
int nearest_ranks(const std::vector<Curve>& curves, Traffic traffic, int ranks, int least_workers) {
  int nearest = 0;
  for (const Curve& curve : curves)
    if (curve.traffic == traffic && curve.workers >= least_workers &&
        (nearest == 0 || distance(curve.ranks, ranks) < distance(nearest, ranks)))
      nearest = curve.ranks;
  return nearest;
}

/// Whether these ranks were sampled on a number of workers that was set.
bool has_workers(const std::vector<Curve>& curves, Traffic traffic, int ranks) {
  return std::ranges::any_of(curves, [&](const Curve& curve) {
    return curve.traffic == traffic && curve.ranks == ranks && curve.workers > 0;
  });
}

/// The time between so many ranks, of which there are curves.
double sampled_us(const std::vector<Curve>& curves, Traffic traffic, int ranks, int workers, double bytes) {
  // The library's own choice counts as the most workers.
  const auto many = [](int w) { return w > 0 ? w : std::numeric_limits<std::int32_t>::max(); };
  const Curve *below = nullptr, *above = nullptr;
  for (const Curve& curve : curves) {
    if (curve.traffic != traffic || curve.ranks != ranks) continue;
    const int w = many(curve.workers), wanted = many(workers);
    if (w <= wanted && (below == nullptr || w > many(below->workers))) below = &curve;
    if (w >= wanted && (above == nullptr || w < many(above->workers))) above = &curve;
  }
  // Fewer workers than any sampled one has carry in proportion; how many the library takes itself is not
  // said.
  if (below == nullptr) return above->us(bytes) * (above->workers > 0 ? above->workers / double(workers) : 1);
  if (above == nullptr || below == above || above->workers == 0) return below->us(bytes);
  return between(workers, below->workers, below->us(bytes), above->workers, above->us(bytes));
}

}  // namespace

std::string_view name(Traffic traffic) {
  return names[static_cast<std::size_t>(traffic)];
}

Traffic parse_traffic(std::string_view text) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return static_cast<Traffic>(i);
  throw InvalidArgument(
      fmt::format("unknown traffic '{}' (one of allreduce, reducescatter, allgather, alltoall)", text));
}

double wire_factor(Traffic traffic, int ranks) {
  return (traffic == Traffic::allreduce ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

double Curve::us(double bytes) const {
  if (samples.empty()) return 0;
  if (bytes <= samples.front().bytes) return samples.front().us;
  const auto next = std::upper_bound(samples.begin(), samples.end(), bytes,
                                     [](double b, const Sample& s) { return b < s.bytes; });
  double longest = 0;  // of fewer bytes
  for (auto sample = samples.begin(); sample != next; ++sample) longest = std::max(longest, sample->us);
  if (next == samples.end()) return std::max(longest, samples.back().us * bytes / samples.back().bytes);
  const Sample &low = *std::prev(next), &high = *next;
  return std::max(longest, between(bytes, low.bytes, low.us, high.bytes, high.us));
}

double collective_us(const std::vector<Curve>& curves, Traffic traffic, int ranks, int workers,
                     double bytes) {
  if (ranks < 2) return 0;
  const int nearest = nearest_ranks(curves, traffic, ranks, 0);
  if (nearest == 0) return -1;
  // The rate is that of the busiest link, and the bytes on it are what changes with the ranks.
  const auto at = [&](int sampled, int taken) {
    return sampled_us(curves, traffic, sampled, taken,
                      bytes * wire_factor(traffic, ranks) / wire_factor(traffic, sampled));
  };
  if (workers == 0 || has_workers(curves, traffic, nearest)) return at(nearest, workers);
  // What so many workers put on a link does not depend on the ranks.
  const int other = nearest_ranks(curves, traffic, ranks, 1);
  return other == 0 ? at(nearest, 0) : std::max(at(nearest, 0), at(other, workers));
}

}  // namespace shingle
