// Coefficients of times that are sums of terms.
#include "tune/least_squares.hpp"

#include <gtest/gtest.h>

namespace shingle::tuning {
namespace {

TEST(FitSums, FindsCoefficients) {
  std::vector<SumSample<3>> samples;
  for (const double x : {1, 2, 5, 9})
    for (const double y : {0, 1, 4}) samples.push_back({{1, x, y}, 7 + 2 * x + 0.5 * y});
  const auto found = fit_sums(samples);
  EXPECT_NEAR(found[0], 7, 1e-9);
  EXPECT_NEAR(found[1], 2, 1e-9);
  EXPECT_NEAR(found[2], 0.5, 1e-9);
}

TEST(FitSums, GivesTheFirstOfEqualTermsAll) {
  std::vector<SumSample<2>> samples;
  for (const double x : {1, 2, 5}) samples.push_back({{x, 3 * x}, 4 * x});
  const auto found = fit_sums(samples);
  EXPECT_NEAR(found[0], 4, 1e-9);
  EXPECT_EQ(found[1], 0);
}

TEST(FitSums, LeavesOutNegativeTermsAndThoseThatNoSampleTells) {
  std::vector<SumSample<3>> samples;
  for (const double x : {1, 2, 5}) samples.push_back({{1, x, 0}, 9 - x});
  const auto found = fit_sums(samples);
  EXPECT_GT(found[0], 3);
  EXPECT_LT(found[0], 9);
  EXPECT_EQ(found[1], 0);
  EXPECT_EQ(found[2], 0);
}

}  // namespace
}  // namespace shingle::tuning
