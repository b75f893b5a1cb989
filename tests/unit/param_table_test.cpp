// The tables of params: every field is a flag, every flag of a mechanism is heeded, and all others are
// refused by the command line and by the API alike.
#include "planner/common/param_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <set>

#include "shingle/api/registry.hpp"
#include "shingle/common/flags.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::param_table_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

/// A value of each flag that is not its default.
const std::map<std::string, std::string> values{
    {"comm-workers", "2"}, {"chunks", "3"},     {"slices", "3"},        {"groups", "1,1"},
    {"helpers", "3"},      {"stage-fp32", ""},  {"one-shot", ""},       {"comm-rows", "64"},
    {"pull", ""},          {"mover", "store"},  {"comm-order", "same"}, {"row-parallel", ""},
    {"variant", "pcpy"},   {"engines", "2"},    {"prelaunch", ""},      {"poll", "rank"},
    {"trigger", "direct"}, {"launchers", "2"},  {"unregistered", ""},   {"tile", "16x32"},
    {"raster", "m"},       {"swizzle", "2"},    {"cluster", "2x1"},     {"rotation", "1"},
    {"hops", "2"},         {"sum-slices", "2"}, {"sum-workers", "2"},   {"sums", "pass"},
    {"slots", "merged"}};

/// A flag with its value, as the command line reads it.
ParamList flag_of(const std::string& name) {
  const std::string& value = values.at(name);
  return cli::parse_plan_flags({"--" + name + (value.empty() ? "" : "=" + value)}).params;
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

Workload workload() {
  return {2, DType::f32, {{"product", 64, 64, 32}}, {{"sum", CollectiveKind::allreduce, 1000}}};
}

TEST(ParamTable, HasEveryFlagOfPlansAndNoOther) {
  CLI::App app;
  cli::PlanFlags flags;
  cli::add_plan_flags(app, flags);
  cli::add_symmetric_flag(app, flags);
  std::set<std::string> known;
  for (const CLI::Option* option : app.get_options())
    if (std::ranges::find(cli::group::plans(), option->get_group()) != cli::group::plans().end() &&
        option->get_name() != "--mechanism")
      known.insert(option->get_name().substr(2));
  known.insert("configs");  // of an overlap's collectives: `cotune` finds them
  std::set<std::string> listed;
  for (const PlannerEntry& entry : planners()) {
    std::set<std::string_view> own;
    for (const ParamInfo& info : param_infos(entry.mechanism)) {
      EXPECT_TRUE(own.insert(info.name).second) << name(entry.mechanism) << " has two of --" << info.name;
      listed.emplace(info.name);
    }
  }
  EXPECT_EQ(listed, known);
  for (const auto& [flag, value] : values) EXPECT_EQ(flag_of(flag), (ParamList{{flag, value}}));
  EXPECT_EQ(values.size() + 2, listed.size()) << "configs and symmetric have no value here";
}

// ----------------------------------------------------------------------------------------------------------
// fields: a field without a row would be lost in text. The bindings name every field, so that a new field
// does not compile before it is set here.

template <class P>
void expect_kept(const P& all) {
  const Mechanism mechanism = mechanism_of(all);
  P copy;
  for (const planner::ParamRow<P>& row : P::table()) {
    EXPECT_EQ(row.text(P{}), std::nullopt) << name(mechanism) << " --" << row.info.name;
    const auto text = row.text(all);
    ASSERT_TRUE(text) << name(mechanism) << " --" << row.info.name;
    P one;
    row.parse(one, *text);
    EXPECT_EQ(row.text(one), text) << name(mechanism) << " --" << row.info.name;
    row.parse(copy, *text);
  }
  EXPECT_TRUE(copy == all) << name(mechanism) << " " << describe(list_of(all));
  const ParamList list = list_of(all);
  EXPECT_TRUE(std::ranges::is_sorted(list, {}, &Param::name)) << describe(list);
  EXPECT_TRUE(parse_params(mechanism, list) == Params{all}) << describe(list);
}

TileParams every_tile_field() {
  TileParams tile;
  auto& [rows, cols, order] = tile;
  auto& [raster, swizzle, cluster_m, cluster_n, rotation] = order;
  rows = 16, cols = 32, raster = Raster::along_m, swizzle = 2, cluster_m = 3, cluster_n = 4, rotation = 5;
  return tile;
}

std::vector<CollectiveConfig> every_config_field() {
  CollectiveConfig config;
  auto& [channels, chunk_bytes, threads, algorithm, protocol, transport, spared, delay] = config;
  channels = 2, chunk_bytes = 4096, threads = 64, spared = 3, delay = 1;
  algorithm = Algorithm::ring, protocol = Protocol::ll, transport = Transport::p2p;
  return {config, {}};
}

TEST(ParamTable, KeepsEveryFieldOfSequential) {
  SequentialParams all;
  auto& [comm_workers, tile, configs, slots, symmetric] = all;
  comm_workers = 3, tile = every_tile_field(), configs = every_config_field(), symmetric = true;
  slots = SlotOrder::merged;
  expect_kept(all);
}

TEST(ParamTable, KeepsEveryFieldOfChunked) {
  ChunkedParams all;
  auto& [comm_workers, chunks, tile, configs, symmetric] = all;
  comm_workers = 3, chunks = 4, tile = every_tile_field(), configs = every_config_field(), symmetric = true;
  expect_kept(all);
}

TEST(ParamTable, KeepsEveryFieldOfSignal) {
  SignalParams all;
  auto& [tile, comm_workers, group_waves, equal_groups, helpers, symmetric] = all;
  tile = every_tile_field(), comm_workers = 3, group_waves = {1, 2, 4}, helpers = 3, symmetric = true;
  expect_kept(all);
  helpers = FusedParams::no_helpers;
  group_waves.clear(), equal_groups = true;  // one flag for both
  expect_kept(all);
}

TEST(ParamTable, KeepsEveryFieldOfRing) {
  RingParams all;
  auto& [engines, mover, comm_workers, slices, row_parallel, unregistered, symmetric] = all;
  engines = 2, mover = Mover::store, comm_workers = 3, slices = 4,
  row_parallel = unregistered = symmetric = true;
  expect_kept(all);
}

TEST(ParamTable, KeepsEveryFieldOfFused) {
  FusedParams all;
  auto& [tile, helpers, sums, stage_fp32, one_shot, comm_rows, pull, mover, comm_order, slots, unregistered,
         symmetric] = all;
  tile = every_tile_field(), helpers = 3, comm_rows = 64, slots = SlotOrder::by_source;
  stage_fp32 = one_shot = pull = unregistered = symmetric = true;
  mover = Mover::store, comm_order = CommOrder::same, sums = SumsIn::pass;
  all.tile.order.rotation = 0;  // the planner's alone
  expect_kept(all);
  helpers = FusedParams::no_helpers;
  expect_kept(all);
}

TEST(ParamTable, KeepsEveryFieldOfCopyEngine) {
  CopyEngineParams all;
  auto& [tile, variant, engines, prelaunch, poll, trigger, launchers, sum_slices, sum_workers, unregistered,
         symmetric] = all;
  tile = every_tile_field(), engines = 2, launchers = 3, sum_slices = 4, sum_workers = 5;
  prelaunch = unregistered = symmetric = true;
  variant = CopyVariant::b2b, poll = PollScope::rank, trigger = EngineTrigger::direct;
  expect_kept(all);
}

TEST(ParamTable, DefaultsOfAMechanismAreNotListed) {
  for (const PlannerEntry& entry : planners()) {
    const Params params = default_params(entry.mechanism);
    EXPECT_EQ(mechanism_of(params), entry.mechanism);
    EXPECT_THAT(list_of(params), IsEmpty()) << name(entry.mechanism);
    EXPECT_TRUE(parse_params(entry.mechanism, {}) == params) << name(entry.mechanism);
  }
}

TEST(ParamTable, SharedParamsAreSetByTheirRow) {
  for (const PlannerEntry& entry : planners()) {
    const Params open = default_params(entry.mechanism);
    EXPECT_FALSE(is_symmetric(open));
    EXPECT_TRUE(is_symmetric(parse_params(entry.mechanism, {{"symmetric", ""}})));
    const ParamList staged{{"unregistered", ""}};
    EXPECT_EQ(list_of(with_unregistered(open)), accepted(entry.mechanism, staged, true))
        << name(entry.mechanism);
  }
}

// ----------------------------------------------------------------------------------------------------------
// what is taken, and what is refused

TEST(ParamTable, WhatAMechanismDoesNotTakeIsRefusedWithWhatItTakes) {
  for (const PlannerEntry& entry : planners())
    for (const auto& [flag, value] : values) {
      const ParamList given = flag_of(flag);
      const auto make = [&] {
        (void)make_plan(problem(), machine_of_tiles(), parse_params(entry.mechanism, given, false));
      };
      if (!why_refused(entry.mechanism, given)) {
        EXPECT_NO_THROW(make()) << name(entry.mechanism) << " --" << flag;
        EXPECT_EQ(accepted(entry.mechanism, given), given);
        EXPECT_EQ(list_of(parse_accepted(entry.mechanism, given)), given);
        continue;
      }
      EXPECT_THAT(
          make, ThrowsMessage<InvalidArgument>(HasSubstr(std::string(name(entry.mechanism)) + " takes no --" +
                                                         flag + "; its params are --")));
      EXPECT_THAT(accepted(entry.mechanism, given), IsEmpty());
      EXPECT_THAT(list_of(parse_accepted(entry.mechanism, given)), IsEmpty());
    }
  EXPECT_EQ(
      why_refused(Mechanism::ring, {{"groups", "1,2"}})->text,
      "ring takes no --groups; its params are --engines, --mover, --comm-workers, --slices, --row-parallel, "
      "--unregistered, --symmetric");
}

TEST(ParamTable, ParamsOfWorkloadsAreRefusedForOthers) {
  const Machine machine = machine_of_tiles();
  const ParamList tile{{"tile", "16x32"}}, configs{{"configs", "channels:1"}};
  for (const Mechanism mechanism : {Mechanism::sequential, Mechanism::chunked})
    for (const ParamList& given : {tile, configs}) {
      const Params params = parse_params(mechanism, given);
      EXPECT_EQ(list_of(params), given);
      EXPECT_TRUE(make_plan(workload(), machine, params)) << name(mechanism) << " " << describe(given);
      EXPECT_EQ(accepted(mechanism, given, true), given);
      EXPECT_THAT(accepted(mechanism, given), IsEmpty());
      const std::string refusal = std::string(name(mechanism)) + " takes no --" + given.front().name;
      EXPECT_THAT([&] { (void)parse_params(mechanism, given, false); },
                  ThrowsMessage<InvalidArgument>(HasSubstr(refusal)));
      EXPECT_THAT([&] { (void)make_plan(problem(), machine, params); },
                  ThrowsMessage<InvalidArgument>(HasSubstr(refusal)));
    }
}

TEST(ParamTable, ErrorsNameTheFlag) {
  const auto says = [](Mechanism mechanism, const Param& param, const std::string& why) {
    EXPECT_THAT([&] { (void)parse_params(mechanism, {param}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("--" + param.name + ": " + why)))
        << describe(ParamList{param});
  };
  says(Mechanism::signal, {"tile", "8"}, "'8' is not two sizes such as 256x512");
  says(Mechanism::signal, {"tile", "8x0"}, "0 is outside [1, 1048576]");
  says(Mechanism::signal, {"raster", "k"}, "'k' is none of n, m");
  says(Mechanism::signal, {"groups", "1,,2"}, "");
  says(Mechanism::signal, {"groups", "1,0"}, "0 is outside [1, ");
  says(Mechanism::fused, {"helpers", "0"}, "0 is outside [1, 1048576]");
  says(Mechanism::fused, {"pull", "yes"}, "'yes' is given, but it takes no value");
  says(Mechanism::fused, {"mover", "train"}, "");
  says(Mechanism::copy_engine, {"variant", "fastest"}, "");
  says(Mechanism::chunked, {"configs", "channels"}, "'channels' is no setting such as channels:4");
  EXPECT_THAT([] { (void)parse_params(Mechanism::fused, {{"wings", "2"}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("fused takes no --wings; its params are --tile, ")));
  EXPECT_THAT([] { (void)cli::parse_plan_flags({"--helpers=0"}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("--helpers: 0 is outside")));
}

// ----------------------------------------------------------------------------------------------------------
// what planners do with them

/// Without the record of its params, which says nothing about what a planner heeds.
Result<Plan> steps_of(const Problem& p, Mechanism mechanism, const ParamList& params) {
  Result<Plan> plan = plan_with(p, machine_of_tiles(), parse_params(mechanism, params, false));
  if (plan) plan->params.clear();
  return plan;
}

/// A param that a mechanism takes makes another plan, or none, of some problem.
TEST(ParamTable, PlannersHeedWhatTheyTake) {
  std::vector<Problem> problems{problem(), problem(Op::gemm_reducescatter), problem(Op::allgather_gemm)};
  problems.push_back(problem(Op::attention_reducescatter));
  problems.back().k = 16;
  problems.back().attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
  const ParamList beside[] = {{}, {{"engines", "1"}}, {{"trigger", "direct"}}, {{"variant", "pcpy"}}};
  for (const PlannerEntry& entry : planners())
    for (const auto& [flag, value] : values) {
      if (why_refused(entry.mechanism, {{flag, value}})) continue;
      bool heeded = false;
      for (const Problem& p : problems)
        for (const ParamList& others : beside) {
          const ParamList base = accepted(entry.mechanism, others);
          ParamList params = base;
          params.push_back({flag, value});  // replaces one of the same name: it is parsed last
          const auto without = steps_of(p, entry.mechanism, base),
                     with = steps_of(p, entry.mechanism, params);
          heeded = heeded || without.has_value() != with.has_value() || (without && *without != *with);
        }
      EXPECT_TRUE(heeded) << name(entry.mechanism) << " --" << flag;
    }
}

TEST(ParamTable, TheFinestMechanismThatTakesAParamServes) {
  const Machine machine = machine_of_tiles();
  const auto best = [&](const ParamList& params) {
    return make_best_plan(problem(), machine, params)->mechanism;
  };
  EXPECT_EQ(best({}), Mechanism::fused);
  EXPECT_EQ(best(flag_of("chunks")), Mechanism::chunked);
  EXPECT_EQ(best({{"groups", "equal"}}), Mechanism::signal);
  EXPECT_EQ(best(flag_of("slices")), Mechanism::ring);
  EXPECT_EQ(best(flag_of("helpers")), Mechanism::fused);
  EXPECT_THROW((void)best({{"chunks", "2"}, {"slices", "2"}}), InvalidArgument);
  EXPECT_THAT([&] { (void)make_best_plan(problem(Op::gemm), machine, {{"tile", "8x8"}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("sequential takes no --tile")));
}

}  // namespace
}  // namespace shingle::param_table_test
