// Which rows of two files belong together, and what is said of them.
#include "shingle/compare/comparison.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shingle::cli::comparison_test {
namespace {

ResultRow row(const std::string& mechanism, std::optional<double> us, const std::string& params = "{}") {
  ResultRow made;
  made.op = "gemm+allreduce";
  made.m = made.n = made.k = 64;
  made.world = 2;
  made.dtype = "f32";
  made.mechanism = mechanism;
  made.params = params;
  made.us = us;
  return made;
}

ResultRow predicted(ResultRow of) {
  of.predicted = true;
  return of;
}

TEST(Comparison, PairsWhatIsEqualButForTimes) {
  ResultRow larger = row("ring", 30), half = row("ring", 30), wide = row("ring", 30), other = row("ring", 30);
  larger.k = 128;
  half.dtype = "bf16";
  wide.world = 4;
  other.op = "gemm+reducescatter";
  const Comparison both = compare({row("ring", 10), larger, row("signal", 20)},
                                  {row("signal", 22), half, wide, other, row("ring", 11)});
  ASSERT_EQ(both.matches.size(), 2u);
  EXPECT_DOUBLE_EQ(both.matches[0].ratio(), 1.1);
  EXPECT_EQ(both.matches[1].b.mechanism, "signal");
  ASSERT_EQ(both.only_a.size(), 1u);
  EXPECT_EQ(both.only_a[0].k, 128);
  EXPECT_EQ(both.only_b.size(), 3u);
}

TEST(Comparison, AsksForParamsWhereBothHaveSeveral) {
  const std::string two = R"({"slices":2})", four = R"({"slices":4})", eight = R"({"slices":8})";
  const Comparison several =
      compare({row("ring", 10, two), row("ring", 20, four)}, {row("ring", 40, four), row("ring", 80, eight)});
  ASSERT_EQ(several.matches.size(), 1u);
  EXPECT_EQ(several.matches[0].a.params, four);
  EXPECT_EQ(several.matches[0].ratio(), 2);
  EXPECT_TRUE(several.matches[0].several);
  EXPECT_EQ(several.only_a.size(), 1u);
  EXPECT_EQ(several.only_b.size(), 1u);
  // One on a side: tuned apart, yet the same row; of several the one with its params.
  const Comparison one = compare({row("ring", 10, two)}, {row("ring", 20, four)});
  ASSERT_EQ(one.matches.size(), 1u);
  EXPECT_FALSE(one.matches[0].several);
  const Comparison found = compare({row("ring", 10, four)}, {row("ring", 20, two), row("ring", 30, four)});
  ASSERT_EQ(found.matches.size(), 1u);
  EXPECT_EQ(found.matches[0].ratio(), 3);
  // Equal ones in their order.
  const Comparison same = compare({row("ring", 1), row("ring", 2)}, {row("ring", 3), row("ring", 4)});
  ASSERT_EQ(same.matches.size(), 2u);
  EXPECT_EQ(same.matches[1].ratio(), 2);
}

TEST(Comparison, ErrorIsRelativeToWhatWasMeasured) {
  const Comparison forth = compare({predicted(row("ring", 90))}, {row("ring", 100)});
  const Comparison back = compare({row("ring", 100)}, {predicted(row("ring", 90))});
  EXPECT_DOUBLE_EQ(*forth.matches[0].error(), -0.1);
  EXPECT_DOUBLE_EQ(*back.matches[0].error(), -0.1);
  EXPECT_DOUBLE_EQ(forth.errors().at(0), 0.1);
  EXPECT_FALSE(compare({row("ring", 1)}, {row("ring", 2)}).matches[0].error());
  EXPECT_FALSE(compare({predicted(row("ring", 1))}, {row("ring", {})}).matches[0].error());
}

TEST(Comparison, SlowerIsBeyondTheThresholdOrBroken) {
  const auto match = [](std::optional<double> a, std::optional<double> b) {
    return Match{row("ring", a), row("ring", b)};
  };
  EXPECT_FALSE(match(100, 105).slower_by(5));
  EXPECT_TRUE(match(100, 105.1).slower_by(5));
  EXPECT_FALSE(match(100, 50).slower_by(0));
  EXPECT_TRUE(match(100, {}).slower_by(1000));
  EXPECT_FALSE(match({}, 100).slower_by(0));
  EXPECT_FALSE(match({}, {}).slower_by(0));
}

}  // namespace
}  // namespace shingle::cli::comparison_test
