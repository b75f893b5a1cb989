// What many measurements of one thing amount to.
#pragma once

#include <vector>

namespace shingle {

/// Order statistics of samples; between two of them, straight.
struct Spread {
  double median = 0;
  double p25 = 0, p75 = 0;
  double least = 0, most = 0;

  /// Interquartile range over the median.
  double relative() const { return (p75 - p25) / median; }
};

/// Of at least one sample.
Spread spread_of(std::vector<double> samples);

/// Of at least one value, all above 0.
double geometric_mean(const std::vector<double>& values);

}  // namespace shingle
