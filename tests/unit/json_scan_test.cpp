// What is read of JSON from outside: bounded in depth, in memory, and in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json_fields.hpp"
#include "cotune/tuned_table.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/verify/wellformed.hpp"

namespace shingle::json_scan_test {
namespace {

using testing::HasSubstr;

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

template <class Read>
std::string refusal(Read read) {
  try {
    read();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

/// A reader that went over its list once for each element would need minutes.
TEST(JsonScan, LongListsTakeLinearTime) {
  const std::string text =
      "[" + repeated(R"({"name": "kernel", "ts": 1.5, "args": {"id": 3}},)", 60000) + "0]";
  EXPECT_EQ(parse_json(text).size(), 60001u);
}

TEST(JsonScan, ListsOfAPlanTakeLinearTime) {
  const std::string ends = "[" + repeated("{},", 400000) + "{}]";
  EXPECT_THAT(refusal([&] {
                plan_from_json(R"({"format": "shingle-plan", "version": 1, "buffers": )" + ends + "}");
              }),
              HasSubstr("missing key 'problem'"));
}

TEST(JsonScan, TunedTablesTakeLinearTime) {
  std::string text = R"({"format": "shingle-nccl-tuning", "version": 1, "entries": [)";
  for (int i = 0; i < 60000; ++i)
    text += (i == 0 ? "" : ",") +
            (R"({"collective": "allreduce", "size_class": 20, "ranks": )" + std::to_string(i + 2) + "}");
  EXPECT_EQ(tuned_table_from_json(text + "]}").entries.size(), 60000u);
}

TEST(JsonScan, DepthIsBounded) {
  EXPECT_NO_THROW(parse_json(repeated("[", 32) + repeated("]", 32)));
  EXPECT_EQ(refusal([] { parse_json(repeated("[", 33) + repeated("]", 33)); }),
            "JSON nested deeper than 32 levels");
  EXPECT_EQ(refusal([] { parse_json(repeated("[", 10000000)); }), "JSON nested deeper than 32 levels");
  EXPECT_EQ(refusal([] { parse_json(repeated(R"({"a":)", 1000000)); }), "JSON nested deeper than 32 levels");
  EXPECT_EQ(parse_json(repeated("[[]],", 0) + "[[],[],[]]").size(), 3u) << "siblings are not nested";
}

TEST(JsonScan, MemoryIsBounded) {
  const JsonLimits limits{.memory_bytes = 1 << 20};
  EXPECT_NO_THROW(scan_json("[" + repeated("1,", 30000) + "1]", limits));
  for (const std::string element : {"1", "[]", "{}", R"({"a":0})", R"("text")"})
    EXPECT_EQ(refusal([&] { scan_json("[" + repeated(element + ",", 40000) + "1]", limits); }),
              "the JSON values take more than the limit of 1.0 MiB")
        << element;
  EXPECT_THAT(refusal([&] { plan_from_json("[" + repeated("[],", 5000000) + "1]"); }),
              HasSubstr("160.0 MiB"));
}

TEST(JsonScan, KeysMayBeHadOnce) {
  const JsonLimits once{.repeated_keys = false};
  EXPECT_NO_THROW(scan_json(R"({"a": {"a": 1, "b": [{"a": 1}, {"a": 2}]}, "b": 1})", once));
  EXPECT_EQ(refusal([&] { scan_json(R"({"a": {"b": 1}, "a": 1})", once); }),
            R"(key "a" given twice in one object)");
  EXPECT_EQ(refusal([] { parse_json(R"({"a": 1, "a": 2})"); }), R"(key "a" given twice in one object)");
  EXPECT_EQ(parse_json(R"({"a": 1, "a": 2})", RepeatedKeys::last_counts)["a"], 2);
}

TEST(JsonScan, SaysWhereTextIsNoJson) {
  EXPECT_EQ(refusal([] { parse_json("{\n  \"a\": }"); }), "malformed JSON at line 2, column 8");
  EXPECT_EQ(refusal([] { parse_json("[1e999]"); }), "malformed JSON: a number is out of range");
  EXPECT_EQ(refusal([] { parse_json(""); }), "malformed JSON at line 1, column 1");
  EXPECT_THAT(refusal([] { plan_from_json("[1e999]"); }), HasSubstr("not JSON: number overflow"));
}

}  // namespace
}  // namespace shingle::json_scan_test
