#include "base/command_line.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/variable.hpp"

namespace shingle::command_line_test {
namespace {

TEST(CommandLine, HasTheVariablesThatChangeWhatIsMeasured) {
  const test::Variable disabled("NCCL_P2P_DISABLE", "1"), connections("CUDA_DEVICE_MAX_CONNECTIONS", "1");
  const test::Variable path("NCCL_TUNER_PLUGIN", "/lib/libplugin.so"), version("NCCL_VERSION", "2.28");
  const char* const words[] = {"/opt/bin/shingle", "bench", "--op", "gemm"};
  const std::string text = command_line(4, words);
  EXPECT_THAT(text, testing::EndsWith("shingle bench --op gemm"));
  EXPECT_THAT(text, testing::HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS=1 "));
  EXPECT_THAT(text, testing::HasSubstr("NCCL_P2P_DISABLE=1 "));
  EXPECT_THAT(text, testing::HasSubstr("NCCL_TUNER_PLUGIN=libplugin.so "));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("/")));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("NCCL_VERSION")));
}

}  // namespace
}  // namespace shingle::command_line_test
