// What processes tell each other of their devices' memory, without a device.
#include <gtest/gtest.h>

#include "cuda/peer/exported.hpp"

namespace shingle::cuda::exported_test {
namespace {

TEST(Exported, ComesBack) {
  std::vector<Exported> all(3);
  all[1].any = true;
  all[1].handle.fill('h');
  all[1].offset = std::uint64_t{5} << 33;
  const auto back = parse_exported(packed(all), all.size());
  ASSERT_TRUE(back);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ((*back)[i].any, all[i].any);
    EXPECT_EQ((*back)[i].handle, all[i].handle);
    EXPECT_EQ((*back)[i].offset, all[i].offset);
  }
  EXPECT_TRUE(parse_exported("", 0));
}

TEST(Exported, IsTakenWholeOrNotAtAll) {
  const std::string bytes = packed(std::vector<Exported>(2));
  EXPECT_FALSE(parse_exported(bytes, 1));
  EXPECT_FALSE(parse_exported(bytes, 3));
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(parse_exported(bytes.substr(0, length), 2)) << length;
}

}  // namespace
}  // namespace shingle::cuda::exported_test
