#include "statistics.hpp"

#include <algorithm>
#include <cmath>

namespace shingle {
namespace {

/// Quantile of sorted values, interpolated linearly; `fraction` is in [0, 1].
double at(const std::vector<double>& sorted, double fraction) {
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (place - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  std::ranges::sort(samples);
  return {at(samples, 0.5), at(samples, 0.25), at(samples, 0.75), samples.front(), samples.back()};
}

double geometric_mean(const std::vector<double>& values) {
  double logarithms = 0;
  for (const double value : values) logarithms += std::log(value);
  return std::exp(logarithms / static_cast<double>(values.size()));
}

}  // namespace shingle
