#include "api/blocks.hpp"

#include <gtest/gtest.h>

#include <random>

namespace shingle {
namespace {

TEST(Blocks, TakesTheFirstGapThatIsLargeEnough) {
  Blocks blocks(4096);
  EXPECT_EQ(blocks.take(1000), 0);
  EXPECT_EQ(blocks.take(0), 1024);
  EXPECT_EQ(blocks.take(512), 1536);
  EXPECT_EQ(blocks.take(2049), std::nullopt);
  EXPECT_TRUE(blocks.give_back(0));
  EXPECT_FALSE(blocks.give_back(0));
  EXPECT_FALSE(blocks.give_back(512)) << "the middle of a block is none";
  EXPECT_EQ(blocks.take(1025), 2048) << "the gap of 1,024 bytes is too small";
  EXPECT_EQ(blocks.take(1024), 0);
  EXPECT_EQ(blocks.take(INT64_MAX), std::nullopt);
}

TEST(Blocks, NeverOverlapAndAllComeBack) {
  constexpr std::int64_t bytes = 64 << 10;
  Blocks blocks(bytes);
  std::mt19937 random(7);
  std::map<std::int64_t, std::int64_t> taken;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      const auto one = std::next(taken.begin(), random() % taken.size());
      EXPECT_TRUE(blocks.give_back(one->first));
      taken.erase(one);
      continue;
    }
    const std::int64_t size = random() % 9000;
    const auto offset = blocks.take(size);
    if (!offset) continue;
    EXPECT_EQ(*offset % Blocks::alignment, 0);
    EXPECT_LE(*offset + size, bytes);
    const auto after = taken.lower_bound(*offset);
    if (after != taken.end()) {
      EXPECT_LE(*offset + size, after->first);
    }
    if (after != taken.begin()) {
      EXPECT_GE(*offset, std::prev(after)->first + std::prev(after)->second);
    }
    taken.emplace(*offset, size);
  }
  for (const auto& [offset, size] : taken) EXPECT_TRUE(blocks.give_back(offset));
  EXPECT_EQ(blocks.take(bytes), 0);
}

}  // namespace
}  // namespace shingle
