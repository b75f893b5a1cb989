// shingle compare, and pages of all commands that write them.
#include <map>

#include "cli_program.hpp"
#include "support/page.hpp"

namespace shingle::cli_compare_test {
namespace {

using nlohmann::json;
using test::count_of;
using testing::HasSubstr;

const std::string profile = "--machine " SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json ";
const std::string what = "--op gemm+reducescatter --mechanism all ";

class CliCompare : public Cli {
 protected:
  /// Predicted rows as a.json; as b.json what `change` makes of them.
  template <class Change>
  void make_files(Change change) const {
    const Outcome predicted = run("simulate --format json " + what + small + profile);
    ASSERT_EQ(predicted.code, 0) << predicted.err;
    json rows = json::parse(predicted.out);
    write("a.json", rows.dump());
    change(rows);
    write("b.json", rows.dump());
  }
  std::string files() const { return "compare " + path("a.json") + " " + path("b.json") + " "; }
  json compared(const std::string& flags = "") const {
    return json::parse(run(files() + "--format json " + flags).out);
  }
};

void slow_down(json& rows, std::size_t which, double times) {
  rows[which]["overlapped_us"] = rows[which]["overlapped_us"].get<double>() * times;
}

TEST_F(CliCompare, HoldsPredictionsAgainstMeasurements) {
  write("b.json", run("run --format json --repeat 1 " + what + small).out);
  write("a.json", run("simulate --format json " + what + small + profile).out);
  const Outcome text = run(files());
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("a.json (predicted)"));
  EXPECT_THAT(text.out, HasSubstr("b.json (measured)"));
  EXPECT_THAT(text.out, HasSubstr("|error| of 7 predictions: median "));
  const json whole = compared();
  ASSERT_EQ(whole.at("rows").size(), 7u);
  for (const json& row : whole.at("rows")) {
    const double a = row.at("a_us"), b = row.at("b_us");
    EXPECT_NEAR(row.at("ratio").get<double>(), b / a, 1e-9);
    EXPECT_NEAR(row.at("error").get<double>(), (a - b) / b, 1e-9);
  }
  EXPECT_EQ(whole.at("absolute_error").at("count"), 7);
  EXPECT_TRUE(whole.at("only_a").empty());
}

TEST_F(CliCompare, ThresholdIsAGate) {
  make_files([](json& rows) { slow_down(rows, 2, 1.08); });
  EXPECT_EQ(run(files()).code, 0);
  EXPECT_EQ(run(files() + "--threshold 10").code, 0);
  const Outcome slower = run(files() + "--threshold 5");
  EXPECT_EQ(slower.code, 1);
  EXPECT_THAT(slower.out, HasSubstr("slower by 8.0 %: gemm+reducescatter 96×80×64"));
  const json rows = compared("--threshold 5").at("rows");
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].at("slower"), i == 2);
  EXPECT_TRUE(compared().at("absolute_error").is_null());
  EXPECT_NEAR(compared().at("ratio").at("max").get<double>(), 1.08, 1e-9);
}

TEST_F(CliCompare, ThresholdFailsWhereARowBroke) {
  make_files([](json& rows) {
    rows[1]["overlapped_us"] = nullptr;
    rows[1]["reason"] = "it fell";
  });
  const Outcome broken = run(files() + "--threshold 50");
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.out, HasSubstr("it fell"));
  EXPECT_EQ(run(files()).code, 0);
}

TEST_F(CliCompare, NamesRowsOfOneFileOnly) {
  make_files([](json& rows) {
    rows[0]["m"] = 95;
    rows.erase(5);
  });
  const Outcome text = run(files());
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("only in A: gemm+reducescatter 96×80×64 2 ranks f32 sequential"));
  EXPECT_THAT(text.out, HasSubstr("only in B: gemm+reducescatter 95×80×64 2 ranks f32 sequential"));
  EXPECT_EQ(compared().at("only_a").size(), 2u);
  write("b.json", "[]");
  EXPECT_EQ(run(files() + "--threshold 5").code, 1) << "nothing was compared";
}

TEST_F(CliCompare, RefusesOtherFiles) {
  make_files([](json&) {});
  const auto refuses = [&](const std::string& text, const std::string& why) {
    write("b.json", text);
    expect_refused(files(), why);
    expect_refused(files(), "b.json: ");
  };
  expect_refused(files() + " --threshold nan", "'nan' is not a number from 0 to 1000000");
  refuses("{\"op\": ", "not JSON");
  refuses("{\"op\": \"gemm\"}", "not an array of rows");
  refuses("[3]", "row 1: must be an object");
  refuses("[{}]", "'op'");
  const json good = json::parse(read_file(path("a.json"), 1 << 20))[0];
  for (const auto& [key, value] : std::map<std::string, json>{{"m", "8"},
                                                              {"n", -1},
                                                              {"k", UINT64_MAX},
                                                              {"world", 1.5},
                                                              {"mechanism", 7},
                                                              {"source", "guessed"},
                                                              {"overlapped_us", -1},
                                                              {"dtype", nullptr}}) {
    json bad = json::array({good, good});
    bad[1][key] = value;
    refuses(bad.dump(), "row 2: ");
    expect_refused(files(), "'" + key + "'");
  }
  expect_refused("compare " + path("a.json"),
                 "compare needs B.json (rows to compare with A: a later run, or measurements of "
                 "predictions): shingle compare A.json B.json");
  expect_refused("compare", "compare needs A.json (rows of run, simulate or plan with --format json");

  expect_refused("compare " + path("a.json") + " nowhere.json", "nowhere.json");
  expect_refused("compare " + path("a.json") + " " + path("a.json") + " --threshold -1", "--threshold");
  expect_refused("compare " + path("a.json") + " " + path("a.json") + " --html nowhere/page.html", "--html");
}

/// One rank has nobody to communicate with: that takes no time, of which there are no ratios.
TEST_F(CliCompare, TakesWhatTakesNoTime) {
  const std::string alone =
      "simulate --op allgather --m 64 --n 32 --world 1 --mechanism sequential " + profile;
  EXPECT_THAT(run(alone).out, testing::Not(HasSubstr("nan")));
  for (const std::string file : {"a.json", "b.json"}) write(file, run(alone + "--format json").out);
  const Outcome compared = run(files());
  EXPECT_EQ(compared.err, "");
  EXPECT_THAT(compared.out, HasSubstr("allgather  64×32×32"));
}

TEST_F(CliCompare, WritesPagesThatStandAlone) {
  const auto page_of = [&](const std::string& arguments) {
    const Outcome outcome = run(arguments + " --html " + path("page.html"));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const std::string page = read_file(path("page.html"), 1 << 26);
    test::expect_stands_alone(page, path("scratch.html"));
    return page;
  };
  make_files([](json& rows) {
    for (json& row : rows) row["source"] = "measured";
  });
  const std::string comparison = page_of(files());
  EXPECT_EQ(count_of(comparison, "<tr>"), 8u);
  EXPECT_THAT(comparison, HasSubstr("Predicted against measured"));
  const std::string measured = page_of("run --repeat 1 " + what + small);
  EXPECT_EQ(count_of(measured, "<tr>"), 8u);
  EXPECT_EQ(count_of(measured, "<svg "), 7u);
  const std::string predicted = page_of("simulate " + what + small + profile);
  EXPECT_EQ(count_of(predicted, "<svg "), 8u) << "seven timelines and the machine's curves";
  const std::string swept = page_of("simulate --op gemm+allreduce --n 4K --world 4 --mechanism signal " +
                                    profile + "--sweep m=1K,4K --sweep k=2K,8K");
  EXPECT_EQ(count_of(swept, "<tr>"), 5u);
  EXPECT_THAT(swept, HasSubstr("K 8K, M·N 16M: "));
}

TEST_F(CliCompare, SweepsSizes) {
  const std::string operation =
      "simulate --format json --op gemm+allreduce --mechanism sequential --n 128 " + profile;
  const json rows = json::parse(run(operation + "--sweep m=64,128 --sweep k=32,64,96").out);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[1].at("m"), 64);
  EXPECT_EQ(rows[1].at("k"), 64);
  EXPECT_EQ(rows[5].at("m"), 128);
  for (const std::string wrong : {"m", "m=", "m=0", "m=8,,9", "q=8", "m=8x", "=8", "m=99999999999999999999"})
    expect_refused(operation + "--k 8 --sweep " + wrong, "--sweep");
  expect_refused("simulate --model nowhere.json --tokens 8 --layer-ops --sweep m=8 " + profile, "--sweep");
}

}  // namespace
}  // namespace shingle::cli_compare_test
