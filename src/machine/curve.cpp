#include "shingle/machine/curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "shingle/base/error.hpp"

namespace shingle {
namespace {

constexpr std::array<std::string_view, traffics> names{"allreduce", "reducescatter", "allgather", "alltoall"};

/// Linear interpolation between two points, in log x and log y.
double between(double x, double x0, double y0, double x1, double y1) {
  const double share = std::log(x / x0) / std::log(x1 / x0);
  return y0 * std::pow(y1 / y0, share);
}

/// Distance of two numbers of ranks, in powers of two.
double distance(int a, int b) {
  return std::abs(std::log2(static_cast<double>(a) / b));
}

/// Nearest number of ranks that has curves of at least `least_workers` workers; 0 if there is none.
int nearest_ranks(const std::vector<Curve>& curves, Traffic traffic, int ranks, int least_workers) {
  int nearest = 0;
  for (const Curve& curve : curves)
    if (curve.traffic == traffic && curve.workers >= least_workers &&
        (nearest == 0 || distance(curve.ranks, ranks) < distance(nearest, ranks)))
      nearest = curve.ranks;
  return nearest;
}

/// True if a curve of these ranks was sampled with a given number of workers.
bool has_workers(const std::vector<Curve>& curves, Traffic traffic, int ranks) {
  return std::ranges::any_of(curves, [&](const Curve& curve) {
    return curve.traffic == traffic && curve.ranks == ranks && curve.workers > 0;
  });
}

/// Time for exactly `ranks` ranks, which must have curves.
double sampled_us(const std::vector<Curve>& curves, Traffic traffic, int ranks, int workers, double bytes) {
  // NCCL's own choice of workers counts as the most.
  const auto many = [](int w) { return w > 0 ? w : std::numeric_limits<std::int32_t>::max(); };
  const Curve *below = nullptr, *above = nullptr;
  for (const Curve& curve : curves) {
    if (curve.traffic != traffic || curve.ranks != ranks) continue;
    const int w = many(curve.workers), wanted = many(workers);
    if (w <= wanted && (below == nullptr || w > many(below->workers))) below = &curve;
    if (w >= wanted && (above == nullptr || w < many(above->workers))) above = &curve;
  }
  // Below the fewest sampled workers the rate is proportional to workers. NCCL's own choice has no known
  // number of workers, so the curve is not scaled.
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
  double longest = 0;  // over all samples with fewer bytes
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
  // The curve's rate is that of the busiest link. Only the bytes on that link change with the number of
  // ranks.
  const auto at = [&](int sampled, int taken) {
    return sampled_us(curves, traffic, sampled, taken,
                      bytes * wire_factor(traffic, ranks) / wire_factor(traffic, sampled));
  };
  if (workers == 0 || has_workers(curves, traffic, nearest)) return at(nearest, workers);
  // The bytes that this number of workers sends over a link do not depend on the number of ranks.
  const int other = nearest_ranks(curves, traffic, ranks, 1);
  return other == 0 ? at(nearest, 0) : std::max(at(nearest, 0), at(other, workers));
}

}  // namespace shingle
