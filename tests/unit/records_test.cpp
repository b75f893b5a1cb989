#include "../../bench/records.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "shingle/bench/contenders.hpp"

namespace shingle::bench::records_test {
namespace {

using testing::ElementsAre, testing::HasSubstr;

std::string file_of(const std::string& text) {
  const std::string path = testing::TempDir() + "/shingle_record_" + std::to_string(::getpid()) + ".csv";
  std::ofstream(path) << text;
  return path;
}

std::string refusal(const std::string& text) {
  try {
    read_record(file_of(text));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

TEST(Records, HaveCellsByColumnAndNotesInEveryRow) {
  const auto rows =
      read_record(file_of("# command: a: b\n# dtype: bf16\nop,plan,us\nx,\"signal:groups=1,2\",2.5\ny,,\n"));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].text("command"), "a: b");
  EXPECT_EQ(rows[1].text("dtype"), "bf16");
  EXPECT_EQ(rows[0].text("plan"), "signal:groups=1,2");
  EXPECT_EQ(rows[0].number("us"), 2.5);
  EXPECT_TRUE(rows[1].has("plan"));
  EXPECT_FALSE(rows[1].has("names"));
  EXPECT_THROW(rows[1].text("names"), InvalidArgument);
  EXPECT_THROW(rows[1].number("us"), InvalidArgument);
  EXPECT_THROW(rows[1].number("op"), InvalidArgument);
}

TEST(Records, MayQuoteCells) {
  EXPECT_THAT(csv_cells("a,,\"b,c\",\"d\"\"e\""), ElementsAre("a", "", "b,c", "d\"e"));
}

TEST(Records, SayWhyAFileIsNone) {
  EXPECT_THAT(refusal("# command: a\nop,us\nx,1\ny\n"), HasSubstr("a line has 1 cells, the header 2: y"));
  EXPECT_THAT(refusal("# command: a\nop,us\n"), HasSubstr("is no record"));
  EXPECT_THAT(refusal("op,us\nx,1\n"), HasSubstr("is no record"));
}

// What a row says of its plan is what `shingle bench --mechanism` takes, so that anybody can run it again.
TEST(Records, OfTheRepositoryHavePlansThatCanBeRun) {
  int plans = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(SHINGLE_TEST_SOURCE_DIR "/bench/results")) {
    if (entry.path().extension() != ".csv") continue;
    for (const RecordRow& row : read_record(entry.path()))
      if (row.has("plan") && !row.text("plan").empty()) {
        EXPECT_EQ(cli::parse_contenders(row.text("plan")).size(), 1u) << entry.path();
        ++plans;
      }
  }
  EXPECT_GT(plans, 300);
}

}  // namespace
}  // namespace shingle::bench::records_test
