// What `run` and `plan` print, also where things went wrong.
#include "shingle/common/rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shingle/common/console.hpp"
#include "shingle/common/flags.hpp"
#include "shingle/common/page.hpp"
#include "shingle/run/execute.hpp"
#include "shingle/run/memory.hpp"
#include "support/variable.hpp"

namespace shingle::cli::cli_rows_test {
namespace {

using test::Variable;
using testing::HasSubstr;

Row row_that_ran() {
  Row row;
  row.named.name = "ffn_down";
  row.named.problem().op = Op::gemm_allreduce;
  row.named.problem().world = 2;
  row.named.problem().m = row.named.problem().n = row.named.problem().k = 64;
  row.backend = "host";
  row.mechanism = "signal";
  row.params = "{}";
  row.time =
      Measurement{.gemm_us = 100, .sequential_us = 200, .overlapped_us = 125, .spread = 0.04, .rounds = 7};
  row.check = {.passed = true, .max_error = 1e-6, .tolerance = 1e-5, .worst = {}};
  return row;
}

Row row_that_is_predicted(const std::string& name, double sequential_us, double us) {
  Row row{.named = row_that_ran().named,
          .backend = "simulator",
          .machine = "h200x8",
          .mechanism = "ring",
          .simulated = true};
  row.named.name = name;
  row.params = R"({"slices": 2, "mover": "store"})";
  row.predicted = Metrics{.us = us, .sequential_us = sequential_us, .compute_us = 100};
  return row;
}

TEST(Rows, TableLinesUp) {
  Row infeasible = row_that_ran();
  infeasible.time.reset();
  infeasible.reason = "because";
  const Variable columns("COLUMNS", "200");
  const std::string table = to_table({row_that_ran(), infeasible});
  EXPECT_THAT(table,
              HasSubstr("ffn_down gemm+allreduce  64×64×64  signal         200 us      125 us    4.0%    "
                        "1.60x     0.75    1.0e-06  yes"));
  EXPECT_THAT(table, HasSubstr("ffn_down gemm+allreduce signal: because\n"));
}

TEST(Rows, HaveASpreadOnlyOfSeveralRounds) {
  Row once = row_that_ran();
  once.time->rounds = 1;
  EXPECT_THAT(to_table({once}), HasSubstr("125 us       -    1.60x"));
  const auto json = nlohmann::json::parse(to_json(std::vector<Row>{row_that_ran()}));
  EXPECT_EQ(json[0].at("spread"), 0.04);
  EXPECT_EQ(json[0].at("rounds"), 7);
}

TEST(Rows, ExplainEveryColumn) {
  Row more = row_that_ran();
  more.time->rounds = 20;
  const std::string text = legend({row_that_ran(), more});
  const Line head = lines_of({more}).at(0);
  for (std::size_t i = 1; i < head.size(); ++i)  // "operator" and "mechanism" are the words of the flags
    if (head[i] != "mechanism") {
      EXPECT_THAT("\n" + text, HasSubstr("\n" + head[i] + "  "));
    }
  EXPECT_THAT(text, HasSubstr("median of 7 to 20 rounds"));
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    EXPECT_LE(end - begin, 80u) << text.substr(begin, end - begin);
  more.time.reset();
  EXPECT_EQ(legend({more}), "") << "nothing ran";
}

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  return lines;
}

TEST(Rows, FoldWhereThePageIsNarrow) {
  const Variable columns("COLUMNS", "80");
  Row other = row_that_ran();
  other.mechanism = "copy-engine";
  const std::vector<std::string> lines = lines_in(to_table({row_that_ran(), other}));
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0], "operator                 M×N×K");
  EXPECT_EQ(lines[3], "ffn_down gemm+allreduce  64×64×64");  // once for both
  EXPECT_THAT(lines[4], HasSubstr("  signal           200 us      125 us    4.0%    1.60x"));
  EXPECT_THAT(lines[6], HasSubstr("  copy-engine      200 us      125 us    4.0%    1.60x"));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 80u + 4) << line;
}

TEST(Rows, FitAPipe) {
  const Variable columns("COLUMNS", std::nullopt);
  EXPECT_EQ(page_width(), 80u);
}

TEST(Rows, FoldedTablesOfAllKindsFitThePage) {
  const Variable columns("COLUMNS", "80");
  Machine machine;
  machine.name = "h200x8";
  Row row = row_that_is_predicted("shared_down", 400e3, 275e3);
  row.mechanism = "copy-engine";
  row.named.problem().m = row.named.problem().n = row.named.problem().k = 16384;
  row.params = R"({"tile": "128x256", "raster": "m", "swizzle": 8,
                   "groups": "11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29",
                   "prelaunch": true, "comm-order": "interleaved"})";
  for (const std::string& table : {planned_table(machine, {row}), predicted_table(machine, {row})})
    for (const std::string& line : lines_in(table))
      EXPECT_LE(line.size(), 80u + 4) << line;  // × are of two bytes
  // Whole, in the words of the flags.
  EXPECT_THAT(planned_table(machine, {row}),
              HasSubstr("    params: comm-order=interleaved\n"
                        "    groups=11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29 prelaunch\n"
                        "    raster=m swizzle=8 tile=128x256\n"));
}

TEST(Rows, FlagFractionsThatNoPlanCanReach) {
  Row row = row_that_ran();
  row.time->overlapped_us = 90;  // less than the computation alone
  EXPECT_THAT(to_table({row}), HasSubstr("1.10*"));
  EXPECT_THAT(to_table({row}), HasSubstr("* above 1 is noise of the measurement"));
  EXPECT_EQ(nlohmann::json::parse(to_json(std::vector<Row>{row}))[0].at("noise"),
            nlohmann::json({"overlap_efficiency"}));
  EXPECT_THAT(to_table({row_that_ran()}), testing::Not(HasSubstr("*")));
  EXPECT_TRUE(nlohmann::json::parse(to_json(std::vector<Row>{row_that_ran()}))[0].at("noise").empty());

  Report page;
  add_rows({row}, lines_of({row}), page);
  EXPECT_THAT(page.tables.at(0).notes, testing::Contains(measured_noise));

  Row predicted = row_that_is_predicted("ffn_down", 200, 90);
  Machine machine;
  EXPECT_THAT(predicted_table(machine, {predicted}), HasSubstr("1.11*"));  // of the roofline
  EXPECT_THAT(predicted_table(machine, {predicted}), HasSubstr("* above 1 is an error of the prediction"));
  EXPECT_EQ(nlohmann::json::parse(simulated_json(std::vector<Row>{predicted}))[0].at("noise"),
            nlohmann::json({"overlap_efficiency", "roofline_fraction"}));
}

TEST(Params, AreWordsOfFlags) {
  EXPECT_EQ(params_text("{}"), "");
  EXPECT_EQ(params_text(""), "");
  const auto printed = [](const Params& params) {
    Plan plan;
    plan.params = list_of(params);
    return params_text(params_json(plan));
  };
  EXPECT_EQ(printed(FusedParams{.helpers = FusedParams::no_helpers, .one_shot = true}),
            "helpers=none one-shot");
  EXPECT_EQ(printed(SignalParams{.tile = {.order = {.cluster_m = 2, .rotation = 3}}, .comm_workers = 16}),
            "cluster=2x1 comm-workers=16 rotation=3");
  EXPECT_EQ(printed(ChunkedParams{.configs = {{.channels = 4, .chunk_bytes = 1024}, {}}}),
            "configs=channels:4/chunk_bytes:1024,default");
  EXPECT_EQ(params_text(R"({"one_shot": true, "pull": false, "tile_rows": 128})"), "one_shot tile_rows=128")
      << "params of older results";
}

TEST(Rows, SayThatAResultIsWrong) {
  Row wrong = row_that_ran();
  wrong.check = {.passed = false,
                 .max_error = std::numeric_limits<double>::infinity(),
                 .tolerance = 1e-5,
                 .worst = "out of rank 1"};
  wrong.reason = "wrong result";
  EXPECT_THAT(to_table({wrong}), HasSubstr("NO"));
  const auto json = nlohmann::json::parse(to_json(std::vector<Row>{wrong}));
  EXPECT_EQ(json[0].at("verified"), false);
  EXPECT_TRUE(json[0].at("max_error").is_null());
  EXPECT_EQ(json[0].at("reason"), "wrong result");
}

TEST(Rows, AreNullWhereNothingRan) {
  Row row = row_that_ran();
  row.time.reset();
  row.params.clear();
  const auto json = nlohmann::json::parse(to_json(std::vector<Row>{row}));
  for (const char* key : {"sequential_us", "overlapped_us", "speedup", "overlap_efficiency", "max_error",
                          "tolerance", "params"})
    EXPECT_TRUE(json[0].at(key).is_null()) << key;
  EXPECT_EQ(to_json(std::vector<Row>{}), "[]\n");
}

TEST(Rows, AddUpToALayer) {
  const Variable columns("COLUMNS", "200");
  Machine machine;
  machine.name = "h200x8";
  std::vector<Row> rows{row_that_is_predicted("attn_out", 200, 125),
                        row_that_is_predicted("ffn_down", 400, 275)};
  const std::string table = planned_table(machine, rows);
  EXPECT_THAT(table, HasSubstr("predicted for h200x8\n"));
  EXPECT_THAT(table, HasSubstr("ring       mover=store slices=2      200 us     125 us    1.60x     0.75\n"));
  // 1 - (400 - 200) / (600 - 200)
  EXPECT_THAT(table, testing::ContainsRegex("\ntotal +600 us +400 us +1.50x +0.50\n"));

  rows[1].named.name = "attn_out";  // of two mechanisms for one operator
  EXPECT_THAT(planned_table(machine, rows), testing::Not(HasSubstr("total")));
  rows[1] = row_that_is_predicted("ffn_down", 400, 275);
  rows[1].predicted.reset();  // a part of a layer
  EXPECT_THAT(planned_table(machine, rows), testing::Not(HasSubstr("total")));
}

TEST(Memory, IsCountedWithoutOverflow) {
  Problem huge;
  huge.op = Op::gemm_allreduce;
  huge.world = 64;
  huge.m = huge.n = huge.k = max_extent;
  EXPECT_GT(user_matrix_bytes(huge, {}), 3e21);
  EXPECT_THROW(require_memory(user_matrix_bytes(huge, {}), "this", {}), InvalidArgument);
  EXPECT_NO_THROW(require_memory(1e3, "this", {}));
  EXPECT_GT(available_bytes(), 1e6);
  // Processes of one host share its memory.
  const double most = available_bytes();
  EXPECT_THROW(require_memory(most / 2, "this", {.mpi = true, .rank = 0, .size = 4, .on_this_host = 4}),
               InvalidArgument);
}

TEST(Memory, IsNamedWhereThereIsNoMore) {
  testing::internal::CaptureStderr();
  print_failure(std::bad_alloc{}, {});
  print_failure(std::bad_alloc{}, {.mpi = true, .rank = 1, .size = 2, .on_this_host = 2});
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "shingle: out of memory\nshingle: rank 1: out of memory\n");
}

TEST(Deadline, LeavesTimeForAllThatIsMoved) {
  Problem p;
  p.op = Op::gemm_allgather_gemm;
  p.world = 2;
  p.m = p.inner = 4096;
  p.n = p.k = 16;
  WorldFlags where;
  const double unpaced = run_timeout_us(p, where);
  const double gathered_bytes = 4.0 * 4096 * 4096;
  where.link = {.gbps = 1e-3, .latency_us = 0};
  EXPECT_GE(run_timeout_us(p, where) - unpaced, gathered_bytes / 1);  // 1 byte/us
  where.link = {};
  where.engine.gbps = 1e-3;
  EXPECT_GE(run_timeout_us(p, where) - unpaced, gathered_bytes / 1);
  // All rows may go to one rank.
  p = {.op = Op::alltoall, .world = 4, .m = 1000, .n = 100, .k = 100};
  p.routing = std::make_shared<Routing>(std::vector(4, std::vector<std::int32_t>(1000)));
  where.engine = {};
  where.link = {.gbps = 1e-3, .latency_us = 0};
  EXPECT_GE(run_timeout_us(p, where), 4.0 * 3000 * 100);
}

TEST(Deadline, LeavesTimeForThePhasesOfEngines) {
  const Problem p{.op = Op::allgather, .world = 8, .m = 64, .n = 1, .k = 1};
  WorldFlags where;
  const double unpaced = run_timeout_us(p, where);
  where.engine = {.control_us = 1,
                  .schedule_us = 10,
                  .copy_us = 100,
                  .sync_us = 1000,
                  .fetch_us = 1e4,
                  .queued_us = 1e5,
                  .poll_us = 1e6,
                  .broadcast_us = 1e7,
                  .swap_us = 1e7};
  const double a_copy = 10 + 100 + 1000 + 1e4 + 1e5 + 1e6 + 1e7;
  const auto plan = plan_copy_engine(p, Machine{}, {.variant = CopyVariant::pcpy, .launchers = 1});
  double phases = 0;
  for (const RankPlan& rank : plan->ranks)
    for (const Lane& lane : rank.lanes)
      if (lane.kind == LaneKind::copy) phases += static_cast<double>(lane.steps.size()) * 1 + a_copy;
  EXPECT_GE(run_timeout_us(p, where) - unpaced, phases);
}

TEST(WorldFlags, FollowTheLauncher) {
  const ProcessLaunch mpi{.mpi = true, .rank = 1, .size = 3, .on_this_host = 3};
  EXPECT_EQ(WorldFlags{}.ranks({}), 4);
  EXPECT_EQ(WorldFlags{}.ranks(mpi), 3);
  EXPECT_EQ(WorldFlags{}.options(mpi).backend, "mpi");
  WorldFlags threads;
  threads.backend = "host";
  EXPECT_EQ(threads.ranks(mpi), 4);
  EXPECT_EQ(threads.options(mpi).backend, "host");
}

}  // namespace
}  // namespace shingle::cli::cli_rows_test
