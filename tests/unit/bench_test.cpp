// shingle bench without its program: what is said on the command line, what is measured, what it amounts to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.hpp"
#include "shingle/bench/shape.hpp"
#include "shingle/bench/suite.hpp"
#include "shingle/host/host.hpp"
#include "support/variable.hpp"

namespace shingle::cli::bench_test {
namespace {

using testing::HasSubstr;

TEST(Contenders, HaveParamsBehindColons) {
  const auto all = parse_contenders("auto,chunked:chunks=4,signal:groups=1,2,4:comm-workers=16,ring");
  ASSERT_EQ(all.size(), 4u);
  EXPECT_TRUE(all[0].automatic);
  EXPECT_EQ(all[1].mechanism, Mechanism::chunked);
  EXPECT_THAT(all[1].params, testing::ElementsAre(Param{"chunks", "4"}));
  EXPECT_EQ(all[2].label, "signal:groups=1,2,4:comm-workers=16");
  EXPECT_THAT(all[2].params,
              testing::UnorderedElementsAre(Param{"groups", "1,2,4"}, Param{"comm-workers", "16"}));
  EXPECT_THAT(all[3].params, testing::IsEmpty());
}

TEST(Contenders, AreRefusedWithTheirName) {
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"magic", "magic"},
           {"signal:groups=x", "'signal:groups=x'"},
           {"signal:wings=2", "'signal:wings=2'"},
           {"signal:mechanism=ring", "twice"},
           {"ring:groups=1,2", "ring takes no --groups; its params are"},
           {"", "''"}}) {
    try {
      parse_contenders(text);
      ADD_FAILURE() << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  }
}

TEST(Contenders, AreSweptOverWorkersOfCollectives) {
  const auto swept = with_comm_workers(parse_contenders("auto,signal"), {8, 16});
  ASSERT_EQ(swept.size(), 4u);
  EXPECT_EQ(swept[1].label, "auto:comm-workers=16");
  EXPECT_THAT(swept[2].params, testing::ElementsAre(Param{"comm-workers", "8"}));
  EXPECT_THROW(with_comm_workers(parse_contenders("signal:comm-workers=2"), {8}), InvalidArgument);
}

TEST(Suite, HasTheProductsOfTwoModels) {
  const auto suite = read_suite(SHINGLE_TEST_SOURCE_DIR "/bench/suite.json", 8, DType::bf16);
  ASSERT_EQ(suite.size(), 108u);
  const auto find = [&](const std::string& name, Op op) {
    for (const NamedProblem& named : suite)
      if (named.name == name && named.problem.op == op && named.problem.m == 16384) return named.problem;
    throw std::out_of_range(name);
  };
  const auto expect = [&](const std::string& name, Op op, std::int64_t n, std::int64_t k) {
    const Problem p = find(name, op);
    EXPECT_EQ(p.n, n) << name;
    EXPECT_EQ(p.k, k) << name;
    EXPECT_EQ(p.dtype, DType::bf16);
    EXPECT_EQ(p.epilogue, Epilogue{});
    EXPECT_FALSE(p.norm.enabled);
  };
  expect("llama-3-70b.qkv", Op::allgather_gemm, 1280, 8192);
  expect("llama-3-70b.ffn_up", Op::allgather_gemm, 7168, 8192);
  expect("gpt-3-175b.qkv", Op::allgather_gemm, 4608, 12288);
  expect("gpt-3-175b.ffn_up", Op::allgather_gemm, 6144, 12288);
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter}) {
    expect("llama-3-70b.attn_out", op, 8192, 1024);
    expect("llama-3-70b.ffn_down", op, 8192, 3584);
    expect("gpt-3-175b.attn_out", op, 12288, 1536);
    expect("gpt-3-175b.ffn_down", op, 12288, 6144);
  }
  EXPECT_EQ(shipped_suite(), find_shipped("bench/suite.json"));
  EXPECT_THROW(read_suite(SHINGLE_TEST_SOURCE_DIR "/models/phi-2.json", 8, DType::bf16), InvalidArgument);
}

TEST(Suite, HasShapesOfItsOwn) {
  const auto suite = read_suite(SHINGLE_TEST_SOURCE_DIR "/bench/flashoverlap.json", 4, DType::bf16);
  ASSERT_EQ(suite.size(), 24u);
  EXPECT_EQ(suite.front().problem.op, Op::gemm_allreduce);
  EXPECT_EQ(suite.front().name, "");
  const NamedProblem& last = suite.back();
  EXPECT_EQ(last.name, "empty-rank");
  EXPECT_EQ(last.problem.op, Op::gemm_alltoall);
  EXPECT_EQ(last.problem.m, 16384);
  EXPECT_EQ(last.problem.k, 8192);
  ASSERT_NE(last.problem.routing, nullptr);
  EXPECT_NE(*last.problem.routing, *suite[suite.size() - 5].problem.routing);
}

TEST(Suite, TakesHeadsOfAttention) {
  const auto suite = read_suite(SHINGLE_TEST_SOURCE_DIR "/bench/attention.json", 4, DType::bf16);
  ASSERT_FALSE(suite.empty());
  const Problem& projected = suite.front().problem;
  EXPECT_EQ(projected.op, Op::attention_reducescatter);
  EXPECT_EQ(projected.k, 64 / 4 * 128);
  EXPECT_TRUE(projected.attention.causal);
  const Problem& last = suite.back().problem;
  EXPECT_EQ(last.op, Op::ulysses_attention);
  EXPECT_EQ(last.n, 48 * 128);
  EXPECT_EQ(last.attention.kv_heads, 48);
}

TEST(Suite, TakesExperts) {
  const auto suite = read_suite(SHINGLE_TEST_SOURCE_DIR "/bench/experts.json", 4, DType::bf16);
  ASSERT_EQ(suite.size(), 16u);
  const NamedProblem& skewed = suite[3];
  EXPECT_EQ(skewed.name, "skewed");
  EXPECT_EQ(skewed.problem.op, Op::moe);
  EXPECT_EQ(skewed.problem.inner, 14336);
  EXPECT_EQ(skewed.problem.experts.topk, 2);
  EXPECT_EQ(skewed.problem.epilogue.activation, Activation::swiglu);
  EXPECT_EQ(skewed.problem.routing->rows(0), 2 * 512);
  EXPECT_NE(*skewed.problem.routing, *suite[0].problem.routing);
  const NamedProblem& counted = suite[12];
  EXPECT_EQ(counted.problem.experts.capacity, 2 * 64);  // no call needs more
  EXPECT_TRUE(counted.problem.has_slots());
  ASSERT_NE(counted.choices, nullptr);
  EXPECT_EQ(counted.choices->rows(3), 2 * 64);
}

TEST(Suite, SaysWhatIsWrongWithItsFile) {
  const std::string path = testing::TempDir() + "/shingle_suite_" + std::to_string(::getpid()) + ".json";
  const auto expect = [&](const std::string& text, const std::string& words) {
    write_file_atomically(path, text);
    try {
      read_suite(path, 2, DType::bf16);
      ADD_FAILURE() << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(path));
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  };
  expect("[]", "not a suite");
  expect(R"({"tokens": [16]})", "not a suite");
  expect(R"({"shapes": [)", "malformed JSON");
  expect(R"({"shapes": []})", "shapes is an empty list; expected a list of objects");
  expect(R"({"shapes": [{"op": "gemm", "m": [16], "n": [16], "K": [16]}]})",
         "shapes[0].K is unknown; expected one of: op, m, n, k, routing");
  expect(R"({"shapes": [{"op": "gemm+allreduce", "m": 16, "n": [16], "k": [16]}]})",
         "shapes[0].m is 16; expected a list of positive integers, such as [96, 768]");
  const std::string first = R"({"shapes": [{"op": "gemm", "m": [16], "n": [16], "k": [16]}, )";
  expect(first + R"({"op": "gemm", "m": [16], "n": [16, 1e300], "k": [16]}]})", "shapes[1].n[1] is 1e+300");
  expect(first + R"({"op": "gemm", "m": [16], "n": [16], "k": [18446744073709551615]}]})",
         "shapes[1].k[0] is 18446744073709551615; expected an integer from 1 to 2147483647");
  expect(first + R"({"op": "gemm", "m": [16], "n": [16]}]})", "shapes[1].k is missing");
  expect(first + R"(7]})", "shapes[1] is 7; expected an object such as");
  expect(R"({"models": ["a.json"], "tokens": 16})", "tokens is 16; expected a list of positive integers");
  expect(R"({"models": "a.json", "tokens": [16]})", "models is \"a.json\"; expected a list of files");
  expect(R"({"shapes": {}})", "shapes is an object; expected a list");
  expect(R"({"shapes": [{"op": "gemm+sum", "m": [16], "n": [16], "k": [16]}]})", "gemm+sum");
  expect(R"({"shapes": [{"op": "gemm+alltoall", "m": [16], "n": [16], "k": [16]}]})", "needs 'routing'");
  expect(R"({"shapes": [{"op": "gemm+allreduce", "m": [16], "n": [16], "k": [16], "routing": ["random"]}]})",
         "takes no 'routing'");
  expect(R"({"shapes": [{"op": "gemm+alltoall", "m": [16], "n": [16], "k": [16], "routing": ["odd"]}]})",
         "odd");
  const std::string attends = R"({"shapes": [{"op": "ulysses-attention", "m": [16])";
  expect(attends + "}]}", "shapes[0].attention is missing; expected {");
  expect(attends + R"(, "k": [16], "attention": {"heads": 2, "head_dim": 8}}]})",
         "shapes[0].k is unknown; expected one of: op, m, attention");
  expect(attends + R"(, "attention": {"heads": 2}}]})", "shapes[0].attention needs heads and head_dim");
  expect(attends + R"(, "attention": {"heads": 2, "head_dim": 8, "causal": 1}}]})",
         "shapes[0].attention.causal is 1; expected true or false");
  const std::string moe =
      R"({"shapes": [{"op": "moe", "m": [16], "n": [16], "k": [16], "routing": ["random"])";
  expect(moe + R"(, "inner": [16]}]})", "shapes[0].experts is missing; expected {");
  expect(moe + R"(, "experts": {"count": 4}}]})", "shapes[0].inner is missing");
  expect(moe + R"(, "inner": [16], "experts": {"topk": 2}}]})", "shapes[0].experts needs count");
  expect(moe + R"(, "inner": [16], "experts": {"count": 4, "top": 2}}]})",
         "shapes[0].experts.top is unknown");
  expect(moe + R"(, "inner": [16], "experts": {"count": 4}, "activation": "tanh"}]})", "tanh");
  expect(R"({"shapes": [{"op": "allreduce", "m": [16], "n": [16], "k": [16]}]})", "shapes[0].k is unknown");
  expect(R"({"shapes": [{"op": "gemm+allreduce", "m": [-1], "n": [16], "k": [16]}]})",
         "shapes[0].m[0] is -1");
  std::remove(path.c_str());
}

BenchRow row_of(const std::string& contender, std::int64_t m, double sequential_us, double us) {
  BenchRow row{.row = {}, .contender = contender};
  row.row.named.problem() = {.op = Op::gemm_allreduce, .world = 2, .m = m, .n = 64, .k = 3584};
  row.row.mechanism = contender;
  row.row.params = "{}";
  row.row.time = Measurement{.gemm_us = 50, .sequential_us = sequential_us, .overlapped_us = us};
  row.checked = "all rows";
  return row;
}

TEST(BenchSummary, IsByContenderAndClass) {
  std::vector<BenchRow> rows{row_of("sequential", 4096, 100, 100), row_of("signal", 4096, 200, 100),
                             row_of("signal", 8192, 800, 100), row_of("signal", 16, 9, 10),
                             row_of("signal", 4096, 1, 100)};
  rows.back().row.check.passed = false;
  rows.push_back(row_of("signal", 4096, 1, 1));
  rows.back().row.params.clear();  // not served
  const auto classes = summarize(rows);
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_EQ(classes[0].shapes, "all");
  EXPECT_EQ(classes[0].count, 3u);
  EXPECT_EQ(classes[0].failed, 1u);
  EXPECT_DOUBLE_EQ(classes[0].us, 210);
  EXPECT_DOUBLE_EQ(classes[0].sequential_us, 1009);
  EXPECT_DOUBLE_EQ(classes[0].least, 0.9);
  EXPECT_THAT(classes[0].slowest, HasSubstr("16x64x3584"));
  EXPECT_DOUBLE_EQ(classes[0].as_good, 2.0 / 3);
  EXPECT_EQ(classes[1].shapes, "gemm+allreduce, M≥4096, K≥3584");
  EXPECT_DOUBLE_EQ(classes[1].geomean, 4);
}

TEST(BenchSummary, TellsHowFarPredictionsAreOff) {
  std::vector<BenchRow> rows{row_of("signal", 16, 200, 100), row_of("signal", 32, 200, 100),
                             row_of("signal", 64, 200, 100)};
  EXPECT_FALSE(summarize_predictions(rows).has_value());
  rows[0].predicted = Metrics{.us = 90};
  rows[1].predicted = Metrics{.us = 130};
  const auto errors = summarize_predictions(rows);
  ASSERT_TRUE(errors.has_value());
  EXPECT_EQ(errors->count, 2u);
  EXPECT_NEAR(errors->median, 0.1, 1e-12);
  EXPECT_NEAR(errors->most, 0.3, 1e-12);
}

TEST(BenchRows, SayWhatTheMachineCouldDoAtBest) {
  BenchRow row = row_of("signal", 4096, 200, 100);
  EXPECT_FALSE(row.roofline_fraction().has_value());
  row.predicted = Metrics{.us = 90, .wire_us = 80};
  EXPECT_DOUBLE_EQ(*row.roofline_fraction(), 0.8);
  row.predicted->wire_us = 10;
  EXPECT_DOUBLE_EQ(*row.roofline_fraction(), 0.5);
  EXPECT_NEAR(row.tflops(), 2.0 * 4096 * 64 * 3584 / 100e6, 1e-9);
  const auto json = json_of(row);
  EXPECT_EQ(json.at("contender"), "signal");
  EXPECT_DOUBLE_EQ(json.at("prediction_error").get<double>(), -0.1);
  EXPECT_EQ(json.at("verified"), true);
  row.checked.clear();
  EXPECT_TRUE(json_of(row).at("verified").is_null()) << "nobody looked";
}

TEST(BenchRows, FlagFractionsThatNoPlanCanReach) {
  BenchRow row = row_of("signal", 4096, 200, 40);  // less than the 50 us of the computation
  EXPECT_TRUE(noisy(row));
  row.predicted = Metrics{.us = 40, .wire_us = 60};
  const Line line = bench_lines({row}).at(1);
  EXPECT_THAT(line, testing::Contains("1.07*"));  // (200 - 40) / (200 - 50)
  EXPECT_THAT(line, testing::Contains("1.50*"));  // 60 / 40
  EXPECT_EQ(json_of(row).at("noise"), nlohmann::ordered_json({"overlap_efficiency", "roofline_fraction"}));
  EXPECT_FALSE(noisy(row_of("signal", 4096, 200, 100)));
}

TEST(BenchRows, FoldWhereThePageIsNarrow) {
  const test::Variable columns("COLUMNS", "80");
  Table table = bench_table();
  std::string text = bench_head(table);
  for (const char* contender : {"sequential", "signal"})
    text += bench_line(table, row_of(contender, 4096, 200, 100));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 84u) << line;
  const auto first = text.find("4096×64×3584");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(text.find("4096×64×3584", first + 1), std::string::npos) << "once for both rows";
}

/// A world of threads whose results change on their way to the host.
class Tampered final : public World {
 public:
  explicit Tampered(std::unique_ptr<World> world) : world_(std::move(world)) {}
  bool tampers = false;

  std::string backend() const override { return world_->backend(); }
  int size() const override { return world_->size(); }
  std::vector<int> local_ranks() const override { return world_->local_ranks(); }
  const Machine& machine() const override { return world_->machine(); }
  Capabilities capabilities() const override { return world_->capabilities(); }
  DeviceBuffer allocate(int rank, std::size_t bytes) override { return world_->allocate(rank, bytes); }
  std::unique_ptr<Executable> compile(const Plan& plan) override { return world_->compile(plan); }
  void barrier() override { world_->barrier(); }
  std::vector<double> all_max(std::vector<double> values) override { return world_->all_max(values); }
  void download(int rank, void* host, const void* device, std::size_t bytes) override {
    world_->download(rank, host, device, bytes);
    if (tampers) static_cast<float*>(host)[bytes / sizeof(float) / 2] += 20;
  }

 private:
  std::unique_ptr<World> world_;
};

Problem small_problem() {
  return {.op = Op::gemm_allreduce, .world = 2, .m = 200, .n = 48, .k = 32};
}

BenchOptions quick() {
  return {.measure = {.repeat = 2}, .where = {}, .launch = {}, .backend = "host"};
}

std::vector<BenchRow> rows_of(World& world, const Problem& problem, const std::string& contenders,
                              const BenchOptions& options = quick()) {
  std::vector<BenchRow> rows;
  Progress progress(false);
  bench_shape(world,
              plan_shape({"", problem}, {world.machine()}, {.contenders = parse_contenders(contenders)}),
              options, progress, [&](BenchRow row) { rows.push_back(std::move(row)); });
  return rows;
}

TEST(BenchShape, MeasuresAndVerifiesEachContender) {
  const auto world = make_thread_world(2);
  for (const Checked checked : {Checked::sampled, Checked::full, Checked::none}) {
    BenchOptions options = quick();
    options.checked = checked;
    const auto rows = rows_of(*world, small_problem(), "chunked:chunks=3,signal,sequential", options);
    ASSERT_EQ(rows.size(), 4u);
    for (const BenchRow& row : rows) {
      EXPECT_TRUE(row.counts()) << row.contender << ": " << row.row.reason;
      EXPECT_GT(row.row.time->gemm_us, 0);
      EXPECT_EQ(row.row.time->overlapped_samples_us.size(), 2u);
      EXPECT_EQ(row.checked.empty(), checked == Checked::none);
    }
    EXPECT_GT(rows[2].memory_bytes, 0) << "signal has a buffer of slots";
    EXPECT_EQ(rows[3].row.time->speedup(), 1) << "the same plan";
  }
}

TEST(BenchShape, FindsAWrongResult) {
  Tampered world(make_thread_world(2));
  world.tampers = true;
  for (const BenchRow& row : rows_of(world, small_problem(), "chunked")) {
    EXPECT_FALSE(row.counts());
    EXPECT_THAT(row.row.reason, HasSubstr(row.contender == "sequential" ? "wrong result" : "has failed"));
  }
}

TEST(BenchShape, GoesOnAfterWhatIsNotServed) {
  const auto world = make_thread_world(2);
  Problem p = small_problem();
  p.op = Op::allgather_gemm;
  const auto rows = rows_of(*world, p, "signal,chunked");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_FALSE(rows[1].planned());
  EXPECT_FALSE(rows[1].row.reason.empty());
  EXPECT_TRUE(rows[2].counts());
}

TEST(BenchShape, SaysThatTheWorldIsBroken) {
  int steps = 0;
  const auto world = make_thread_world(2, {.on_step = [&](const StepEvent& event) {
                                         if (event.rank == 1 && ++steps == 9) throw Error("pulled the plug");
                                       }});
  std::vector<BenchRow> rows;
  Progress progress(false);
  const Shape shape = plan_shape({"", small_problem()}, {world->machine()},
                                 {.contenders = parse_contenders("chunked,signal")});
  EXPECT_THROW(
      bench_shape(*world, shape, quick(), progress, [&](BenchRow row) { rows.push_back(std::move(row)); }),
      BrokenWorld);
  ASSERT_FALSE(rows.empty());
  EXPECT_THAT(rows.back().row.reason, HasSubstr("pulled the plug"));
}

}  // namespace
}  // namespace shingle::cli::bench_test
