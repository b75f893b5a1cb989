// Statistics of repeated measurements.
#pragma once

#include <vector>

namespace shingle {

/// Order statistics of samples, interpolated linearly.
struct Spread {
  double median = 0;
  double p25 = 0, p75 = 0;
  double least = 0, most = 0;

  /// Interquartile range over the median.
  double relative() const { return (p75 - p25) / median; }
};

/// `samples` holds at least one sample.
Spread spread_of(std::vector<double> samples);

/// `values` holds at least one value, and all are above 0.
double geometric_mean(const std::vector<double>& values);

}  // namespace shingle
