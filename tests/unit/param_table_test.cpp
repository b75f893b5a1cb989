// The table of params: every mechanism × param is either honoured or refused, by flags and by the API alike.
#include "planner/common/param_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <map>
#include <set>

#include "shingle/api/registry.hpp"
#include "shingle/common/flags.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::param_table_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// A value of each flag that is not its default.
const std::map<std::string, std::string> values{
    {"comm-workers", "2"}, {"chunks", "3"},    {"slices", "3"},        {"groups", "1,1"},
    {"helpers", "3"},      {"stage-fp32", ""}, {"one-shot", ""},       {"comm-rows", "8"},
    {"pull", ""},          {"mover", "store"}, {"comm-order", "same"}, {"row-parallel", ""},
    {"variant", "pcpy"},   {"engines", "2"},   {"prelaunch", ""},      {"poll", "rank"},
    {"trigger", "direct"}, {"launchers", "2"}, {"unregistered", ""},   {"tile", "16x32"},
    {"raster", "m"},       {"swizzle", "2"},   {"cluster", "2x1"},     {"rotation", "1"}};

Params params_of(const std::string& flag) {
  const std::string value = values.at(flag);
  return cli::parse_plan_flags({"--" + flag + (value.empty() ? "" : "=" + value)}).params;
}

Machine machine_of_tiles() {
  Machine machine;
  machine.workers = 4, machine.collective_workers = 1;
  machine.tile_rows = machine.tile_cols = 32;
  return machine;
}

Problem problem(Op op = Op::gemm_allreduce) {
  return {.op = op, .world = 4, .m = 256, .n = 256, .k = 64, .dtype = DType::bf16};
}

TEST(ParamTable, HasEveryFlagOfPlansAndNoOther) {
  CLI::App app;
  cli::PlanFlags flags;
  cli::add_plan_flags(app, flags);
  cli::add_symmetric_flag(app, flags);
  std::set<std::string> known;
  for (const CLI::Option* option : app.get_options())
    if (std::ranges::find(cli::group::plans, option->get_group()) != cli::group::plans.end() &&
        option->get_name() != "--mechanism")
      known.insert(option->get_name().substr(2));
  known.insert("configs");  // of an overlap's collectives: `cotune` finds them
  std::set<std::string> listed;
  for (const ParamEntry& entry : param_table()) EXPECT_TRUE(listed.emplace(entry.flag).second) << entry.flag;
  EXPECT_EQ(listed, known);
}

/// A field that the table forgets would be dropped in silence.
TEST(ParamTable, CoversEveryField) {
  Params all;
  auto& [tile_rows, tile_cols, order, comm_workers, chunks, group_waves, equal_groups, helpers, stage_fp32,
         one_shot, comm_rows, pull, mover, comm_order, slices, row_parallel, variant, engines, prelaunch,
         poll, trigger, launchers, configs, unregistered, symmetric] = all;
  tile_rows = tile_cols = comm_workers = chunks = helpers = slices = engines = launchers = 3;
  order = {Raster::along_m, 2, 2, 2, 2};
  group_waves = {1}, comm_rows = 3, configs = {{}};
  equal_groups = stage_fp32 = one_shot = pull = row_parallel = prelaunch = unregistered = symmetric = true;
  mover = Mover::store, comm_order = CommOrder::same, variant = Variant::b2b, poll = Poll::rank;
  trigger = Trigger::direct;
  for (const ParamEntry& entry : param_table()) {
    EXPECT_TRUE(entry.given(all)) << entry.flag;
    entry.reset(all);
    EXPECT_FALSE(entry.given(all)) << entry.flag;
  }
  EXPECT_EQ(all, Params{});
}

TEST(ParamTable, WhatAMechanismDoesNotTakeIsRefusedWithWhatItTakes) {
  for (const PlannerEntry& entry : planners())
    for (const auto& [flag, value] : values) {
      const Params params = params_of(flag);
      const auto make = [&] { (void)make_plan(problem(), machine_of_tiles(), entry.mechanism, params); };
      const auto reason = untaken(entry.mechanism, Op::gemm_allreduce, params);
      if (!reason) {
        EXPECT_NO_THROW(make()) << name(entry.mechanism) << " --" << flag;
        continue;
      }
      EXPECT_THAT(
          make, ThrowsMessage<InvalidArgument>(HasSubstr(std::string(name(entry.mechanism)) + " takes no --" +
                                                         flag + "; its params are --")));
      EXPECT_EQ(taken(entry.mechanism, Op::gemm_allreduce, params), Params{});
    }
  EXPECT_THAT(untaken(Mechanism::ring, Op::gemm_allreduce, {.group_waves = {1, 2}})->text,
              "ring takes no --groups; its params are --comm-workers, --slices, --row-parallel, --engines, "
              "--unregistered, --symmetric");
}

/// What the table says is what planners do: a param makes another plan, or none, of some problem exactly
/// where it is taken.
TEST(ParamTable, SaysWhatPlannersHeed) {
  const Machine machine = machine_of_tiles();
  std::vector<Problem> problems{problem(), problem(Op::gemm_reducescatter), problem(Op::allgather_gemm)};
  problems.push_back(problem(Op::attention_reducescatter));
  problems.back().k = 16;
  problems.back().attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
  for (const PlannerEntry& entry : planners())
    for (const auto& [flag, value] : values) {
      bool heeded = false;
      for (const Problem& p : problems)
        for (Params base : {Params{}, Params{.engines = 1}, Params{.trigger = Trigger::direct}}) {
          Params params = params_of(flag);
          if (base.engines > 0 && params.engines == 0) params.engines = base.engines;
          if (base.trigger == Trigger::direct) params.trigger = base.trigger;
          const auto without = entry.plan(p, machine, base), with = entry.plan(p, machine, params);
          heeded = heeded || without.has_value() != with.has_value() || (without && *without != *with);
        }
      EXPECT_EQ(heeded, !untaken(entry.mechanism, Op::gemm_allreduce, params_of(flag)))
          << name(entry.mechanism) << " --" << flag;
    }
}

TEST(ParamTable, TheFinestMechanismThatTakesAParamServes) {
  const Machine machine = machine_of_tiles();
  const auto best = [&](const std::string& flag) {
    return make_best_plan(problem(), machine, params_of(flag))->mechanism;
  };
  EXPECT_EQ(best("chunks"), Mechanism::chunked);
  EXPECT_EQ(make_best_plan(problem(), machine, {.equal_groups = true})->mechanism, Mechanism::signal);
  EXPECT_EQ(best("slices"), Mechanism::ring);
  EXPECT_EQ(best("helpers"), Mechanism::fused);
  EXPECT_THROW((void)make_best_plan(problem(), machine, {.chunks = 2, .slices = 2}), InvalidArgument);
  EXPECT_THAT([&] { (void)make_best_plan(problem(Op::gemm), machine, {.tile_rows = 8}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("sequential takes no --tile")));
}

}  // namespace
}  // namespace shingle::param_table_test
