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
  int nearest = 0;
  for (const Curve& curve : curves)
    if (curve.traffic == traffic && (nearest == 0 || distance(curve.ranks, ranks) < distance(nearest, ranks)))
      nearest = curve.ranks;
  if (nearest == 0) return -1;
  // The library's own choice counts as the most workers.
  const auto many = [](int w) { return w > 0 ? w : std::numeric_limits<std::int32_t>::max(); };
  const Curve *below = nullptr, *above = nullptr;
  for (const Curve& curve : curves) {
    if (curve.traffic != traffic || curve.ranks != nearest) continue;
    const int w = many(curve.workers), wanted = many(workers);
    if (w <= wanted && (below == nullptr || w > many(below->workers))) below = &curve;
    if (w >= wanted && (above == nullptr || w < many(above->workers))) above = &curve;
  }
  // The rate is that of the busiest link, and the bytes on it are what changes with the ranks.
  const double equivalent = bytes * wire_factor(traffic, ranks) / wire_factor(traffic, nearest);
  // Fewer workers than any sampled one has carry in proportion; how many the library takes itself is not
  // said.
  if (below == nullptr)
    return above->us(equivalent) * (above->workers > 0 ? above->workers / double(workers) : 1);
  if (above == nullptr || below == above || above->workers == 0) return below->us(equivalent);
  return between(workers, below->workers, below->us(equivalent), above->workers, above->us(equivalent));
}

}  // namespace shingle
