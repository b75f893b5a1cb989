// Comparison of two sets of results.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shingle/compare/results.hpp"

namespace shingle::cli {

/// The same problem with the same mechanism in both sets.
struct Match {
  ResultRow a, b;
  bool several = false;  ///< there are others that differ in params only

  bool timed() const { return a.us && b.us; }
  /// Time of b over time of a. Requires timed().
  double ratio() const { return *b.us / *a.us; }
  /// Error of the predicted time, relative to the measured time. Empty unless one side is predicted and the
  /// other measured.
  std::optional<double> error() const;
  /// True if b takes more than `percent` longer, or failed where a did not.
  bool slower_by(double percent) const;
};

struct Comparison {
  std::vector<Match> matches;  ///< in the order of a
  std::vector<ResultRow> only_a, only_b;

  std::vector<double> ratios() const;
  std::vector<double> errors() const;  ///< absolute values
};

/// Pairs rows of equal operator, sizes, world, type and mechanism. If either set has several such rows, their
/// params must be equal too. Among equal rows, the first pairs with the first.
Comparison compare(const std::vector<ResultRow>& a, const std::vector<ResultRow>& b);

}  // namespace shingle::cli
