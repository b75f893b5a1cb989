// Links that transfers share.
#include "sim/links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shingle::links_test {
namespace {

using sim::Links;

/// Two transfers share a link; a third that crosses another, too, gets what the second link leaves it, and
/// the first two share the rest.
TEST(Links, AreSharedMaxMinFairly) {
  Links links;
  const auto wide = links.add_channel(0.012), narrow = links.add_channel(0.002);  // 12 and 2 bytes an us
  links.begin(0, 0, 50, {wide});
  links.begin(0, 1, 100, {wide});
  links.begin(0, 2, 4, {wide, narrow});
  links.share();
  // 2 for the third, 5 each for the others.
  EXPECT_DOUBLE_EQ(links.next_end(), 2);
  EXPECT_THAT(links.finished(2), testing::ElementsAre(2));
  links.share();  // 40 and 90 bytes are left, 6 an us each
  EXPECT_NEAR(links.next_end(), 2 + 40.0 / 6, 1e-9);
  EXPECT_THAT(links.finished(2 + 40.0 / 6), testing::ElementsAre(0));
  links.share();
  EXPECT_NEAR(links.next_end(), 2 + 40.0 / 6 + 50.0 / 12, 1e-9);
}

}  // namespace
}  // namespace shingle::links_test
