// Two sets of results beside each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shingle/compare/results.hpp"

namespace shingle::cli {

/// The same problem by the same mechanism in both.
struct Match {
  ResultRow a, b;
  bool several = false;  ///< more of them differ in params alone

  bool timed() const { return a.us && b.us; }
  /// Time of b over time of a. Only where timed().
  double ratio() const { return *b.us / *a.us; }
  /// Of the predicted time, relative to the measured one; empty where not one of each is there.
  std::optional<double> error() const;
  /// Whether b takes more than `percent` longer, or broke where a did not.
  bool slower_by(double percent) const;
};

struct Comparison {
  std::vector<Match> matches;  ///< in the order of a
  std::vector<ResultRow> only_a, only_b;

  std::vector<double> ratios() const;
  std::vector<double> errors() const;  ///< without their signs
};

/// Pairs rows of equal operator, sizes, world, type and mechanism. Where both have several of them, their
/// params must be equal, too; of equal ones the first goes with the first.
Comparison compare(const std::vector<ResultRow>& a, const std::vector<ResultRow>& b);

}  // namespace shingle::cli
