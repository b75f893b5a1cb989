// Priorities of the streams of lanes.
#include "cuda/runtime/lane_priority.hpp"

#include <gtest/gtest.h>

namespace shingle::cuda::lane_priority_test {
namespace {

TEST(LanePriority, IsThatOfTheStreamIfHigh) {
  for (const int high : {-1, -2, -5}) {
    EXPECT_EQ(lane_priority(high, false), high);
    EXPECT_LT(lane_priority(high, true), high) << "urgent";
  }
}

TEST(LanePriority, IsTheDefaultBesideOtherStreams) {
  for (const int low : {0, 1}) {
    EXPECT_EQ(lane_priority(low, false), 0);
    EXPECT_EQ(lane_priority(low, true), -1);
  }
}

}  // namespace
}  // namespace shingle::cuda::lane_priority_test
