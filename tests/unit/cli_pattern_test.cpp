// What --only takes, and what it refuses in time.
#include "shingle/common/pattern.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shingle/base/error.hpp"

namespace shingle::cli::cli_pattern_test {
namespace {

using testing::HasSubstr;

const std::string shape = "llama-3-70b.ffn_down gemm+reducescatter 4096x8192x3584 bf16, 8 ranks";

std::string refusal(const std::string& pattern) {
  try {
    static_cast<void>(Pattern(pattern).in(shape));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Pattern, FindsWhatUsersWrite) {
  for (const char* pattern :
       {"", "llama-3-70b", "llama-3-70b.ffn_down gemm.reducescatter", "allreduce|reducescatter",
        "llama.*scatter", R"(ffn_(up|down).*\b(4096|16384)x)", "^llama", "ranks$", "[0-9]+x[0-9]+",
        R"(\d+x\d+x3584 bf16)"})
    EXPECT_TRUE(Pattern(pattern).in(shape)) << pattern;
  for (const char* pattern : {"Llama", "allreduce", "ffn_up", "4096x$", "^ffn", "9 ranks|16 ranks"})
    EXPECT_FALSE(Pattern(pattern).in(shape)) << pattern;
}

TEST(Pattern, SaysWhatIsWrong) {
  EXPECT_EQ(refusal("("),
            "'(': its parentheses do not match; write a pattern such as 'ffn_down.*(8192|16384)x'");
  EXPECT_THAT(refusal("[a"), HasSubstr("a '[' has no ']'"));
  EXPECT_THAT(refusal("a{1000}"), HasSubstr("counted repetition"));
  EXPECT_THAT(refusal("(?=.*a)b"), HasSubstr("look-ahead"));
  EXPECT_THAT(refusal(R"((a*)\1)"), HasSubstr("back references"));
  EXPECT_THAT(refusal("a\nb"), HasSubstr("control characters"));
  EXPECT_THAT(refusal(std::string(257, 'a')), HasSubstr("257 characters, at most 256"));
  EXPECT_EQ(refusal(std::string(300, '(')).find('\n'), std::string::npos);
}

/// These take a backtracking search longer than the universe is old.
TEST(Pattern, TakesNoTimeToMiss) {
  const std::string text(120, 'a');
  std::string nested = "a";
  for (int i = 0; i < 80; ++i) nested = "(" + nested + ")*";
  for (const std::string& pattern : {std::string("(a*)*b"), std::string("(a|a)*b"), std::string("(a|aa)+$b"),
                                     std::string("(.*)*(.*)*(.*)*b"), std::string("((a+)+)+b"), nested + "b"})
    EXPECT_FALSE(Pattern(pattern).in(text)) << pattern;
}

}  // namespace
}  // namespace shingle::cli::cli_pattern_test
