// shingle bench: rows, records, filters, budget, failures.
#include "cli_program.hpp"

namespace shingle::cli_bench_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string quick = "bench --iters 2 --warmup 1 --mechanism chunked,signal --world 2 ";
const std::string sizes = "--op gemm+allreduce --n 48 --k 32 ";

class CliBench : public Cli {
 protected:
  json record(const std::string& arguments, int code = 0) const {
    const Outcome outcome = run(quick + "--format json " + arguments);
    EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.err;
    return json::parse(outcome.out);
  }
};

TEST_F(CliBench, RecordsEachShapeAndMechanism) {
  const json all = record(sizes + "--begin 100 --end 400 --factor 2");
  EXPECT_EQ(all.at("world"), 2);
  EXPECT_EQ(all.at("mode"), "single");
  EXPECT_FALSE(all.at("commit").get<std::string>().empty());
  EXPECT_TRUE(all.at("machine").contains("cpu"));
  ASSERT_EQ(all.at("rows").size(), 9u);
  for (const json& row : all.at("rows")) {
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_EQ(row.at("overlapped").at("samples_us").size(), 2u);
    EXPECT_EQ(row.at("overlapped").at("median_us"), row.at("overlapped_us"));
    EXPECT_GT(row.at("compute_us"), 0);
    EXPECT_GT(row.at("tflops"), 0);
    EXPECT_EQ(row.at("source"), "measured");
    EXPECT_TRUE(row.at("predicted_us").is_null()) << "no profile";
    EXPECT_THAT(row.at("checked").get<std::string>(),
                HasSubstr(row.at("m") == 400 ? "one of every 3 rows" : "all rows"));
  }
  EXPECT_EQ(all.at("rows")[4].at("contender"), "chunked");
  EXPECT_EQ(all.at("rows")[8].at("m"), 400);
  EXPECT_EQ(all.at("summary").size(), 2u);
  EXPECT_TRUE(all.at("left").empty());
}

TEST_F(CliBench, PrintsATableAndKeepsTheRecord) {
  const std::string files = "--out " + path("r.json") + " --html " + path("r.html") + " ";
  const Outcome outcome = run(quick + files + sizes + "--m 64 --check full --idle-ms 1");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("64×48×32"));
  EXPECT_THAT(outcome.out, HasSubstr("geomean"));
  EXPECT_THAT(outcome.out, HasSubstr("idle before each"));
  EXPECT_EQ(json::parse(read_file(path("r.json"), 1 << 26)).at("rows").size(), 3u);
  EXPECT_THAT(read_file(path("r.html"), 1 << 26), HasSubstr("Summary"));
  EXPECT_EQ(run("compare " + path("r.json") + " " + path("r.json")).code, 0) << "the same rows as run's";
}

TEST_F(CliBench, PredictsByAProfile) {
  const json all = record(sizes + "--m 64 --machine " SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json");
  for (const json& row : all.at("rows")) EXPECT_GT(row.at("predicted_us"), 0);
  EXPECT_EQ(all.at("prediction_error").at("count"), 3);
}

TEST_F(CliBench, ConfirmsWhatItChooses) {
  const Outcome outcome =
      run("bench --iters 2 --warmup 1 --mechanism auto --confirm 2 --world 2 --format json " + sizes +
          "--m 64 --machine " SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json row = json::parse(outcome.out).at("rows").at(1);
  EXPECT_EQ(row.at("verified"), true) << row;
  const json& choice = row.at("choice");
  EXPECT_EQ(choice.at("confirmed"), true);
  int measured = 0;
  for (const json& at : choice.at("considered")) measured += at.contains("measured_us") ? 1 : 0;
  EXPECT_EQ(measured, 2);
  EXPECT_THAT(choice.at("reason").get<std::string>(), HasSubstr(row.at("mechanism").get<std::string>()));
}

TEST_F(CliBench, TakesShapesOfTheSuite) {
  const json all = record("--suite --max-m 16 --only 'llama-3-70b.attn_out gemm.allreduce' --dtype f32");
  ASSERT_EQ(all.at("rows").size(), 3u);
  EXPECT_EQ(all.at("rows")[0].at("layer_op"), "llama-3-70b.attn_out");
  EXPECT_EQ(all.at("rows")[0].at("k"), 4096) << "of two ranks";
  write("suite.json", R"({"models": [")" SHINGLE_TEST_SOURCE_DIR R"(/models/phi-2.json"], "tokens": [8]})");
  EXPECT_EQ(
      record("--suite " + path("suite.json") + " --op gemm+reducescatter --only attn").at("rows").size(), 3u);
}

TEST_F(CliBench, SweepsWorkersOfCollectives) {
  const json all = record(sizes + "--m 64 --workers 4 --comm-workers 1,2");
  ASSERT_EQ(all.at("rows").size(), 5u);
  EXPECT_EQ(all.at("rows")[4].at("contender"), "signal:comm-workers=2");
  EXPECT_EQ(all.at("rows")[4].at("params").at("comm-workers"), 2);
  EXPECT_EQ(record(sizes + "--m 64 --sustained").at("epochs"), 10);
}

TEST_F(CliBench, StopsWhenItsTimeIsUp) {
  const Outcome outcome = run(quick + sizes + "--begin 64 --end 256 --budget 1us");
  EXPECT_EQ(outcome.code, 1) << "nothing ran";
  EXPECT_THAT(outcome.out, HasSubstr("left: gemm+allreduce 64x48x32"));
  EXPECT_THAT(outcome.out, HasSubstr("left: gemm+allreduce 256x48x32"));
}

TEST_F(CliBench, GoesOnAfterAShapeThatFails) {
  // A deadline that no wait keeps breaks the world, which threads have anew for each shape.
  const json all = record(sizes + "--begin 64 --end 128 --timeout 1us", 1);
  ASSERT_EQ(all.at("rows").size(), 2u) << "the sequential plan of each";
  for (const json& row : all.at("rows")) {
    EXPECT_EQ(row.at("verified"), false);
    EXPECT_THAT(row.at("reason").get<std::string>(), HasSubstr("rank"));
  }
}

TEST_F(CliBench, RefusesBadUsage) {
  expect_refused("bench --suite nowhere.json --wings 2", "unknown flag --wings");
  expect_refused("bench", "--op");
  expect_refused("bench --suite --op gemm", "no shape is left");
  expect_refused("bench --suite --m 8", "--m");
  expect_refused(quick + sizes + "--m 8 --begin 8", "leave out --m");
  expect_refused(quick + sizes + "--end 8", "--begin");
  expect_refused(quick + sizes + "--begin 16 --end 8", "below");
  expect_refused(quick + sizes + "--m 8 --only '('", "--only");
  expect_refused(quick + sizes + "--m 8 --check maybe", "--check");
  expect_refused(quick + sizes + "--m 8 --sustained --idle-ms 1", "--idle-ms");
  expect_refused("bench --mechanism magic " + sizes + "--m 8", "--mechanism");
  expect_refused("bench --suite " + path("none.json"), "none.json");
}

TEST_F(CliBench, RunsUnderMpirun) {
  const Outcome outcome = mpirun(2, "bench --iters 2 --mechanism chunked --format json --begin 300 " + sizes);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json record = json::parse(outcome.out);
  for (const json& row : record.at("rows")) EXPECT_EQ(row.at("verified"), true) << row;
}

}  // namespace
}  // namespace shingle::cli_bench_test
