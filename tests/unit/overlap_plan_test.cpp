// Overlaps as plans: proven, simulated, run, and refused where their list or their configs do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <variant>

#include "shingle/api/registry.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/sim/simulate.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/overlap_run.hpp"

namespace shingle::overlap_plan_test {
namespace {

using test::sample_overlap;
using testing::HasSubstr;

std::vector<CollectiveConfig> configs() {
  return {{.channels = 1}, {.channels = 3, .chunk_bytes = 1 << 16}, {.protocol = Protocol::ll}, {}};
}

/// Copy engines move all, in parts of one slice, several, and more than there are rows.
std::vector<CollectiveConfig> by_engines() {
  return {{.transport = Transport::engines, .delay = 1},
          {.channels = 2, .chunk_bytes = 256, .transport = Transport::engines, .spared = 2},
          {.channels = 1, .chunk_bytes = 1, .transport = Transport::engines},
          {.transport = Transport::engines, .spared = 1, .delay = 9}};
}

Machine small_machine() {
  return test::overlap_machine(8);
}

Plan planned(int world, const Params& params) {
  return make_plan(sample_overlap(world), small_machine(), params).value();
}

template <class T>
T& nth(Plan& plan, int rank, int n = 0) {
  for (Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (Step& step : lane.steps)
      if (T* found = std::get_if<T>(&step); found && n-- == 0) return *found;
  throw Error("no such step");
}

TEST(OverlapPlan, IsProvenBesideAndInSequence) {
  for (const int world : {1, 2, 3, 8}) {
    const TileParams tile{.rows = world == 2 ? 16 : 0};
    const Params all[] = {ChunkedParams{.tile = tile, .configs = configs()},
                          SequentialParams{.tile = tile, .configs = configs()}};
    for (const Params& params : all) {
      const Proof proof = verify(planned(world, params));
      EXPECT_TRUE(proof.ok) << name(mechanism_of(params)) << ", " << world << ": " << proof.rule << ": "
                            << proof.failure;
    }
  }
}

TEST(OverlapPlan, IsProvenByCopyEnginesAndWithBothAtOnce) {
  std::vector<CollectiveConfig> mixed = by_engines();
  mixed[1] = mixed[3] = {.channels = 1, .spared = 3, .delay = 1};
  for (const int world : {1, 2, 3, 5, 8})
    for (const auto& all : {by_engines(), mixed})
      for (const Params& params :
           {Params(ChunkedParams{.configs = all}), Params(SequentialParams{.configs = all})}) {
        const Plan plan = planned(world, params);
        const Proof proof = verify(plan);
        EXPECT_TRUE(proof.ok) << name(mechanism_of(params)) << ", " << world << ": " << proof.rule << ": "
                              << proof.failure;
        EXPECT_EQ(plan_from_json(to_json(plan)), plan);
        EXPECT_GT(simulate(plan, small_machine()).makespan_us, 0);
      }
}

/// With the figures of engines the variant follows from them: `ring` keeps many ranks in step.
TEST(OverlapPlan, IsProvenWithTheVariantsOfAMachine) {
  Machine machine = small_machine();
  machine.engine = {.copy_us = 1, .gbps = 10};
  for (const int world : {2, 4, 8}) {
    Workload list = sample_overlap(world);
    for (Workload::Collective& item : list.collectives) item.bytes *= 1000;  // latencies do not decide
    std::vector<CollectiveConfig> configs = by_engines();
    for (CollectiveConfig& config : configs) config.chunk_bytes *= 1000;
    const Plan plan = make_plan(list, machine, ChunkedParams{.configs = configs}).value();
    const Proof proof = verify(plan);
    EXPECT_TRUE(proof.ok) << world << ": " << proof.rule << ": " << proof.failure;
    const bool in_step =
        std::ranges::any_of(plan.counters, [](const Counter& at) { return at.name == "in step"; });
    EXPECT_EQ(in_step, world > 2) << world;
  }
}

/// The least that a step of a lane awaits, and the most workers that computations take.
TEST(OverlapPlan, ComputationsSpareWorkersAndEndBeforeADelayedCollective) {
  const Workload list{2,
                      DType::f32,
                      {{"a", 16, 16, 8}, {"b", 16, 16, 8}, {"c", 16, 16, 8, {0}}, {"d", 16, 16, 8}},
                      {{"gather", CollectiveKind::allgather, 1000}}};
  const auto most = [&](const CollectiveConfig& config) {
    Plan plan = make_plan(list, small_machine(), ChunkedParams{.configs = {config}}).value();
    std::vector<std::int32_t> workers;
    for (int i = 0; i < 4; ++i) workers.push_back(nth<Gemm>(plan, 0, i).resources.most);
    return workers;
  };
  EXPECT_THAT(most({.channels = 1}), testing::ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(most({.channels = 1, .spared = 3}), testing::ElementsAre(5, 5, 8, 8)) << "c awaits the gather";
  EXPECT_THAT(most({.channels = 1, .spared = 3, .delay = 1}), testing::ElementsAre(8, 5, 8, 8));
  for (const Transport transport : {Transport::automatic, Transport::engines})
    for (const std::int32_t delay : {0, 1, 2, 3}) {
      const Plan plan = make_plan(list, small_machine(),
                                  ChunkedParams{.configs = {{.transport = transport, .delay = delay}}})
                            .value();
      const Simulated simulated = simulate(plan, small_machine());
      double began = 1e9;
      std::vector<double> ended;
      for (const Span& span : simulated.spans) {
        const Step& step = plan.ranks[0]
                               .lanes[static_cast<std::size_t>(span.lane)]
                               .steps[static_cast<std::size_t>(span.step)];
        if (span.rank != 0) continue;
        if (std::holds_alternative<Gemm>(step)) ended.push_back(span.end_us);
        if (std::holds_alternative<Collective>(step) || std::holds_alternative<Copy>(step))
          began = std::min(began, span.begin_us);
      }
      std::ranges::sort(ended);
      const auto waits = static_cast<std::size_t>(std::min(delay, 2));  // a and b run beside it
      if (waits > 0) {
        EXPECT_GE(began, ended[waits - 1]) << name(transport) << delay;
      }
      EXPECT_LE(began, ended[waits]) << name(transport) << delay;
    }
}

TEST(OverlapPlan, ReadsBackAsItWasWritten) {
  const Plan plan = planned(3, ChunkedParams{.configs = configs()});
  EXPECT_EQ(plan_from_json(to_json(plan)), plan);
  EXPECT_EQ(workload_from_lists(lists_to_json(sample_overlap()), 2, DType::f32), sample_overlap());
  EXPECT_THAT(to_text(plan), HasSubstr("with 3 channels, 64.0 KiB"));
  EXPECT_THROW(workload_from_lists(R"({"computations": []})", 2, DType::f32), InvalidArgument);
}

using nlohmann::json;

/// The plan in the form from before workloads had a type of their own: as the problem of an operator.
json older(const Plan& plan) {
  json text = json::parse(to_json(plan)), workload = text.at("workload");
  text.erase("workload");
  const Workload& w = *plan.workload();
  text["problem"] = {{"op", "overlap"},
                     {"world", workload.at("world")},
                     {"dtype", workload.at("dtype")},
                     {"m", w.m()},
                     {"n", w.n()},
                     {"k", w.k()}};
  text["problem"]["overlap"] = {{"computations", workload.at("computations")},
                                {"collectives", workload.at("collectives")}};
  return text;
}

TEST(OverlapPlan, IsReadInItsOlderForm) {
  const Plan plan = planned(3, ChunkedParams{.configs = configs()});
  EXPECT_FALSE(json::parse(to_json(plan)).contains("problem"));
  EXPECT_EQ(plan_from_json(older(plan).dump()), plan);
  const auto says = [](const json& text, const std::string& what) {
    EXPECT_THAT([&] { plan_from_json(text.dump()); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr(what)));
  };
  json wrong = older(plan);
  wrong["problem"]["m"] = 41;
  says(wrong, "problem: 41x32x24 are not the largest sizes of the overlap's computations, 40x32x24");
  wrong = older(plan);
  wrong["problem"].erase("overlap");
  says(wrong, "problem: missing key 'overlap'");
  wrong = older(plan);
  wrong["problem"]["transpose_a"] = true;
  says(wrong, "problem: unknown key \"transpose_a\"");
  wrong = older(plan);
  wrong["workload"] = json::parse(to_json(plan)).at("workload");
  says(wrong, "unknown key \"problem\"");
  wrong["workload"]["world"] = 0;
  wrong.erase("problem");
  says(wrong, "workload: world = 0 is outside");
}

/// A plan of which a step was changed fails by its rule.
void expect_refused(Plan plan, auto&& change, const std::string& rule, const std::string& says) {
  change(plan);
  const Proof proof = verify(plan);
  EXPECT_FALSE(proof.ok);
  EXPECT_EQ(proof.rule, rule) << proof.failure;
  EXPECT_THAT(proof.failure, HasSubstr(says));
}

/// An operator's steps are refused in the plan of a workload, and the reverse.
TEST(OverlapPlan, HasNoStepsOfAnOperator) {
  const auto says = [](auto&& change, const std::string& text) {
    Plan plan = planned(2, ChunkedParams{});
    change(plan);
    EXPECT_THAT(malformed(plan).value_or("well-formed"), HasSubstr(text));
  };
  says([](Plan& p) { nth<Gemm>(p, 0).out.form = placement::Routed{0, 1, {0}}; }, "no routing");
  says(
      [](Plan& p) {
        Attend attend;
        attend.grid = nth<Gemm>(p, 0).grid;
        p.ranks[0].lanes[0].steps.push_back(attend);
        p.ranks[0].issue.push_back(0);
      },
      "no attention");
  says([](Plan& p) { p.buffers[0].role = Role::keys; }, "the workload has no keys");
  says([](Plan& p) { p.buffers[0].dtype = DType::f16; }, "but the workload f32");
  says([](Plan& p) { p.buffers[0].cols += 1; }, "the workload asks for 40x24");
  says([](Plan& p) { p.work = Problem{Op::allreduce, 2, 40, 24, 24}; }, "the problem has no b");
  EXPECT_THROW((void)planned(2, ChunkedParams{}).problem(), std::bad_variant_access);
  expect_refused(
      planned(2, ChunkedParams{}), [](Plan& p) { nth<Gemm>(p, 0).epilogue.activation = Activation::relu; },
      "content", "applies an epilogue that is not the problem");
  expect_refused(
      planned(2, ChunkedParams{}),
      [](Plan& p) {
        Elementwise pass;
        pass.grid = nth<Gemm>(p, 0).grid;
        pass.from = {nth<Gemm>(p, 0).out};
        pass.to = nth<Gemm>(p, 0).out;
        pass.epilogue.activation = Activation::relu;
        p.ranks[0].lanes[0].steps.push_back(pass);
        p.ranks[0].issue.push_back(0);
      },
      "content", "applies an epilogue that is not the problem");
}

TEST(OverlapPlan, WrongResultsAreFound) {
  const Plan plan = planned(2, ChunkedParams{});
  expect_refused(
      plan, [](Plan& p) { nth<Gemm>(p, 0).a.cols = nth<Gemm>(p, 0).b.rows = 4; }, "content",
      "but holds C of ranks 0 over K = 4");
  expect_refused(
      plan, [](Plan& p) { std::swap(nth<Gemm>(p, 1, 0).out.slice.row, nth<Gemm>(p, 1, 1).out.slice.row); },
      "content", "K =");
  expect_refused(
      plan,
      [](Plan& p) {
        for (int r = 0; r < 2; ++r) nth<Collective>(p, r, 2).send.row += 1;
      },
      "content", "should be payload");
  expect_refused(
      plan,
      [](Plan& p) {
        for (int r = 0; r < 2; ++r) nth<Collective>(p, r, 1).kind = CollectiveKind::alltoall;
      },
      "well-formed", "send_rows");
  expect_refused(
      plan, [](Plan& p) { nth<Collective>(p, 0, 0).config.channels = -1; }, "well-formed", "config");
  expect_refused(
      plan, [](Plan& p) { nth<Collective>(p, 0, 0).config.transport = Transport::engines; }, "well-formed",
      "of copy engines");
  expect_refused(
      planned(2, ChunkedParams{.configs = by_engines()}),
      [](Plan& p) {
        for (int r = 0; r < 2; ++r) nth<Elementwise>(p, r, 1).from.pop_back();
      },
      "content", "");
}

/// A product stands for the computation in whose rows it is stored, whatever slice its rows are relative to.
TEST(OverlapPlan, AProductIsWholeWhereItsRowsAreStored) {
  const Workload workload{2,
                          DType::bf16,
                          {{"half", 32, 32, 16}, {"whole", 32, 32, 32}},
                          {{"sum", CollectiveKind::allreduce, 4096}}};
  const Plan plan = make_plan(workload, small_machine(), ChunkedParams{}).value();
  ASSERT_TRUE(verify(plan)) << verify(plan).failure;
  const auto moved = [](Plan& p, std::int64_t k) {
    for (int r = 0; r < 2; ++r) {
      Gemm& second = nth<Gemm>(p, r, 1);
      second.a.cols = second.b.rows = k;
      second.out.slice.row = 0, second.out.slice.rows = 64;
      second.out.form = placement::Matrix{RowMap::identity(32, 32)};
    }
  };
  Plan same = plan;
  moved(same, 32);
  EXPECT_TRUE(verify(same)) << verify(same).failure;
  expect_refused(
      plan, [&](Plan& p) { moved(p, 16); }, "content",
      "should be C of ranks 1 over K = 32 of epoch 0, row 0, column 0 at its start, but holds C of ranks 1 "
      "over K = 16");
  // By way of another buffer.
  expect_refused(
      plan,
      [](Plan& p) {
        const auto out = find_buffer(p, Role::out);
        p.buffers.push_back(p.buffers[static_cast<std::size_t>(out)]);
        p.buffers.back().name = "elsewhere";
        p.buffers.back().role = Role::internal;
        for (int r = 0; r < 2; ++r) {
          Gemm& second = nth<Gemm>(p, r, 1);
          second.a.cols = second.b.rows = 16;
          Elementwise back;
          back.grid = second.grid;
          back.to = second.out;
          second.out.slice.buffer = static_cast<std::int32_t>(p.buffers.size()) - 1;
          back.from = {second.out};
          auto& rank = p.ranks[static_cast<std::size_t>(r)];
          rank.lanes[0].steps.push_back(std::move(back));
          rank.issue.push_back(0);
        }
      },
      "content", "but holds C of ranks 1 over K = 16");
}

/// Two weights with rows and one without, between products with one weight.
Workload with_experts() {
  Workload list = sample_overlap();
  list.computations.push_back({"experts", 40, 16, 24, {}, ComputationKind::product, {24, 0, 16}});
  list.computations.push_back({"last", 16, 16, 24});
  return list;
}

TEST(OverlapPlan, GroupsAreMultipliedByTheirWeights) {
  const Workload list = with_experts();
  EXPECT_EQ(list.b_rows(), 3 * 24);
  EXPECT_EQ(workload_from_lists(lists_to_json(list), 2, DType::f32), list);
  const Plan plan = make_plan(list, small_machine(), ChunkedParams{}).value();
  ASSERT_TRUE(verify(plan)) << verify(plan).failure;
  constexpr int experts = 4;  // among the products of a rank
  Plan copy = plan;
  EXPECT_THAT(nth<Gemm>(copy, 0, experts).groups,
              testing::ElementsAre(RowGroup{0, 0, 24, 0}, RowGroup{24, 24, 16, 2}));
  expect_refused(
      plan, [](Plan& p) { nth<Gemm>(p, 0, experts).groups[1].weight = 1; }, "content", "with weight 1");
  expect_refused(
      plan, [](Plan& p) { nth<Gemm>(p, 0, experts).groups[1].weight = 3; }, "well-formed",
      "weight 3 is none of the 3");
  expect_refused(
      plan, [](Plan& p) { nth<Gemm>(p, 0, experts).groups[1].a_row = 0; }, "content", "should be C");
}

TEST(OverlapPlan, GroupsHaveNoTransposedWeights) {
  Workload list = sample_overlap();
  list.computations.push_back({"experts", 40, 16, 16, {}, ComputationKind::product, {24, 0, 16}});
  const Plan plan = make_plan(list, small_machine(), ChunkedParams{}).value();
  ASSERT_TRUE(verify(plan)) << verify(plan).failure;
  expect_refused(
      plan, [](Plan& p) { nth<Gemm>(p, 0, 4).transpose_b = true; }, "content", "as its columns of B");
}

TEST(OverlapPlan, WhatItsListSaysIsAwaited) {
  const Plan plan = planned(2, ChunkedParams{.tile = {.rows = 16}});
  const Simulated simulated = simulate(plan, small_machine());
  const auto ends = [&](int lane, auto&& is) {
    std::vector<double> begin, end;
    for (const Span& span : simulated.spans) {
      const Step& step =
          plan.ranks[0].lanes[static_cast<std::size_t>(lane)].steps[static_cast<std::size_t>(span.step)];
      if (span.rank != 0 || span.lane != lane || !is(step)) continue;
      begin.push_back(span.begin_us);
      end.push_back(span.end_us);
    }
    return std::pair{begin, end};
  };
  const auto [begun, computed] = ends(0, [](const Step& s) { return std::holds_alternative<Gemm>(s); });
  const auto [sent, arrived] = ends(1, [](const Step& s) { return std::holds_alternative<Collective>(s); });
  ASSERT_EQ(begun.size(), 4) << "the attention is a product";
  ASSERT_EQ(sent.size(), 4);
  EXPECT_LT(sent[0], computed[0]) << "nothing to wait for";
  EXPECT_GE(begun[1], arrived[0]);
  EXPECT_GE(begun[2], arrived[1]);
  EXPECT_GE(begun[3], arrived[2]);
  EXPECT_GE(sent[2], computed[1]);
  EXPECT_GE(sent[3], computed[2]);
}

TEST(OverlapPlan, RefusesListsThatDoNotFit) {
  const auto says = [](const Workload& list, const std::string& text) {
    try {
      list.validate();
      ADD_FAILURE() << "should say " << text;
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), HasSubstr(text));
    }
  };
  Workload list = sample_overlap();
  list.computations.clear();
  says(list, "0 computations");
  list = sample_overlap();
  list.collectives[0].after = {1};  // which awaits it
  says(list, "wait for each other");
  list = sample_overlap();
  list.computations[1].after = {4};
  says(list, "awaits index 4, but there are 4 collectives");
  list = sample_overlap();
  list.collectives[1].bytes = 0;
  says(list, "collective scatter: bytes = 0 is outside");
  list = sample_overlap();
  list.computations[0].k = 0;
  says(list, "first is 24x16x0");
  list = sample_overlap();
  list.computations[0].m = list.computations[1].m = max_extent - 1;
  says(list, "rows together");
  list = with_experts();
  list.computations[5].groups = {24, 0, 15};
  says(list, "computation experts: groups of 24, 0, 15 rows are not m = 40 rows together");
  list.computations[5].groups = {48, -8};
  says(list, "groups of 48, -8 rows");
  list = with_experts();
  list.computations[3].groups = {40};  // a pass
  says(list, "computation norm has groups, but only products have weights");
  list = with_experts();
  list.computations[5].k = max_extent / 2;
  says(list, "weights of a computation have");
  says(sample_overlap(0), "world = 0 is outside");
  says(sample_overlap(max_planned_world + 1), "is outside [1, 16384]");
}

TEST(OverlapPlan, RefusesConfigsAndMechanismsThatDoNotFit) {
  const auto reason = [&](const Params& params) {
    return make_plan(sample_overlap(), small_machine(), params).reason();
  };
  EXPECT_THAT(reason(ChunkedParams{.configs = {{}}}), HasSubstr("1 configs for 4 collectives"));
  EXPECT_THAT(reason(ChunkedParams{.configs = {{.channels = 8}, {}, {}, {}}}), HasSubstr("no worker of 8"));
  EXPECT_THAT(reason(ChunkedParams{.configs = {{.spared = 8}, {}, {}, {}}}), HasSubstr("no worker of 8"));
  EXPECT_THAT(
      reason(ChunkedParams{.configs = {{.threads = 64, .transport = Transport::engines}, {}, {}, {}}}),
      HasSubstr("there is no allgather with 64 threads, engines"));
  EXPECT_THAT(reason(ChunkedParams{.configs = by_engines(), .symmetric = true}),
              HasSubstr("all ranks are planned"));
  Machine apart = small_machine();
  apart.peer_memory = false;
  EXPECT_THAT(make_plan(sample_overlap(), apart, ChunkedParams{.configs = by_engines()}).reason(),
              HasSubstr("not accessible"));
  for (const Mechanism other : {Mechanism::ring, Mechanism::signal, Mechanism::fused, Mechanism::copy_engine})
    EXPECT_THAT(reason(default_params(other)), HasSubstr("use chunked")) << name(other);
}

TEST(OverlapPlan, RunsOnThreads) {
  for (const int ranks : {1, 3}) {
    const auto world = make_world(ranks, {.workers_per_rank = 4});
    test::expect_overlap_runs(*world, sample_overlap(ranks));
    test::expect_overlap_runs(*world, sample_overlap(ranks), by_engines());
  }
}

}  // namespace
}  // namespace shingle::overlap_plan_test
