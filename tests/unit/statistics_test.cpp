#include "base/statistics.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "base/parallel.hpp"

namespace shingle::statistics_test {
namespace {

TEST(Spread, LiesBetweenSamples) {
  const Spread four = spread_of({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(four.median, 2.5);
  EXPECT_DOUBLE_EQ(four.p25, 1.75);
  EXPECT_DOUBLE_EQ(four.p75, 3.25);
  EXPECT_DOUBLE_EQ(four.least, 1);
  EXPECT_DOUBLE_EQ(four.most, 4);
  EXPECT_DOUBLE_EQ(four.relative(), 0.6);
  const Spread one = spread_of({7});
  EXPECT_DOUBLE_EQ(one.median, 7);
  EXPECT_DOUBLE_EQ(one.p75, 7);
}

TEST(GeometricMean, IsTheRootOfTheProduct) {
  EXPECT_DOUBLE_EQ(geometric_mean({2, 8}), 4);
  EXPECT_NEAR(geometric_mean({0.5, 2, 1}), 1, 1e-15);
}

TEST(ParallelFor, CallsEachOnceAndPassesOnWhatIsThrown) {
  std::vector<std::atomic<int>> calls(100);
  parallel_for(calls.size(), [&](std::size_t i) { ++calls[i]; });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
  parallel_for(0, [](std::size_t) { FAIL(); });
  EXPECT_THROW(parallel_for(8,
                            [](std::size_t i) {
                              if (i == 5) throw std::runtime_error("five");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace shingle::statistics_test
