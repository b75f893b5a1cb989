// What the last calls of a queue write.
#include <gtest/gtest.h>

#include <array>

#include "cuda/memory/outputs.hpp"

namespace shingle::cuda::outputs_test {
namespace {

std::array<char, 4096> memory;

AddressRange range(std::size_t first, std::size_t bytes) {
  return {memory.data() + first, bytes};
}

Outputs outputs(std::size_t first, std::size_t bytes) {
  Outputs made;
  made.add(memory.data() + first, bytes);
  return made;
}

TEST(Outputs, MeetWhatSharesAByte) {
  const Outputs one = outputs(1024, 1024);
  EXPECT_TRUE(one.meet(range(0, 1025)));
  EXPECT_TRUE(one.meet(range(2047, 1)));
  EXPECT_TRUE(one.meet(range(1500, 10)));
  EXPECT_TRUE(one.meet(range(0, 4096)));
  EXPECT_FALSE(one.meet(range(0, 1024))) << "bytes before it";
  EXPECT_FALSE(one.meet(range(2048, 100))) << "bytes behind it";
  EXPECT_FALSE(Outputs().meet(range(0, 4096)));
  EXPECT_FALSE(outputs(1024, 0).meet(range(0, 4096)));
}

TEST(Outputs, CoverAllHoweverMany) {
  Outputs many;
  for (const std::size_t at : {100, 3000, 1000, 2000}) many.add(memory.data() + at, 10);
  for (const std::size_t at : {100, 3000, 1000, 2000}) EXPECT_TRUE(many.meet(range(at, 10))) << at;
  EXPECT_FALSE(many.meet(range(0, 100)));
  EXPECT_FALSE(many.meet(range(3010, 100)));
}

TEST(Outputs, AreForgottenAfterAsManyCallsAsMayBeInFlight) {
  LastOutputs last(3);
  last.add(outputs(1024, 1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(last.meet(range(1024, 1)));
    last.add(outputs(0, 1));
  }
  EXPECT_TRUE(last.meet(range(1024, 1)));
  last.add(Outputs());
  EXPECT_FALSE(last.meet(range(1024, 1)));
  EXPECT_TRUE(last.meet(range(0, 1)));
}

}  // namespace
}  // namespace shingle::cuda::outputs_test
