// Times that are sums of terms: the fit of their coefficients.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace shingle::tuning {

/// A measured time, the sum over all terms of factor · coefficient.
template <std::size_t terms>
struct SumSample {
  std::array<double, terms> factors;
  double us;
};

/// Coefficients with the least squares of relative errors, none negative: a term whose coefficient would be
/// negative is left out, the most negative one first. Of terms that the samples do not tell apart, the first
/// has all, and the others have 0. All times must be positive.
template <std::size_t terms>
std::array<double, terms> fit_sums(const std::vector<SumSample<terms>>& samples) {
  std::array<bool, terms> used;
  used.fill(true);
  for (;;) {
    // Normal equations, reduced by Gauss and Jordan. Terms that are left out keep rows of zeros.
    std::array<std::array<double, terms + 1>, terms> rows{};
    for (const SumSample<terms>& sample : samples)
      for (std::size_t i = 0; i < terms; ++i) {
        if (!used[i]) continue;
        const double weight = sample.factors[i] / (sample.us * sample.us);
        for (std::size_t j = 0; j < terms; ++j) rows[i][j] += used[j] ? weight * sample.factors[j] : 0;
        rows[i][terms] += weight * sample.us;
      }
    std::array<double, terms> found{};
    const auto diagonal = [&rows](std::size_t i) { return rows[i][i]; };
    std::array<double, terms> scale;
    for (std::size_t i = 0; i < terms; ++i) scale[i] = diagonal(i);
    for (std::size_t i = 0; i < terms; ++i) {
      if (diagonal(i) <= 1e-12 * scale[i]) continue;
      for (std::size_t other = 0; other < terms; ++other) {
        if (other == i) continue;
        const double factor = rows[other][i] / diagonal(i);
        for (std::size_t j = 0; j <= terms; ++j) rows[other][j] -= factor * rows[i][j];
      }
    }
    for (std::size_t i = 0; i < terms; ++i)
      if (diagonal(i) > 1e-12 * scale[i]) found[i] = rows[i][terms] / diagonal(i);
    const auto least = std::min_element(found.begin(), found.end());
    if (*least >= 0) return found;
    used[static_cast<std::size_t>(least - found.begin())] = false;
  }
}

}  // namespace shingle::tuning
