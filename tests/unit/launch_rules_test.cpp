// Which launches may start before the previous kernel of their stream ends.
#include "lower/launch_rules.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lower/launch_program.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::early_test::launch_rules_test {
namespace {

Machine gpus() {
  Machine machine;
  machine.workers = 16;
  machine.tile_rows = machine.tile_cols = 16;
  machine.tiles = {{16, 16, 1, 0.01}};
  machine.link = {100, 1};
  machine.memory_gbps = 1000;
  machine.launch_us = 4;
  machine.sync_us = 2;
  return machine;
}

Problem problem(Op op) {
  return {.op = op, .world = 4, .m = 128, .n = 64, .k = 64, .inner = op == Op::mlp ? 32 : 0};
}

/// By kind, on lane 0 of rank 0: whether its GEMMs begin early, in order; and its passes.
struct Found {
  std::vector<bool> gemms, passes;
};
Found find(const Plan& plan) {
  Found found;
  const Lane& lane = plan.ranks[0].lanes[0];
  for (std::size_t i = 0; i < lane.steps.size(); ++i) {
    if (std::holds_alternative<Gemm>(lane.steps[i])) found.gemms.push_back(may_start_early(plan, 0, lane, i));
    if (std::holds_alternative<Elementwise>(lane.steps[i]))
      found.passes.push_back(may_start_early(plan, 0, lane, i));
  }
  return found;
}

TEST(MayStartEarly, AGemmOfTheUsersMatricesAndTheSumsBehindIt) {
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce}) {
    const Found found = find(plan_fused(problem(op), gpus(), {.sums = SumsIn::pass}).value());
    EXPECT_EQ(found.gemms, std::vector<bool>{true});
    EXPECT_EQ(found.passes, std::vector<bool>{true});
  }
}

TEST(MayStartEarly, AGemmThatAwaitsPartsOfItsSumsOnly) {
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce}) {
    Plan plan = plan_fused(problem(op), gpus(), {.sums = SumsIn::epilogue}).value();
    EXPECT_EQ(find(plan).gemms, std::vector<bool>{true});
    for (Step& step : plan.ranks[0].lanes[0].steps)
      if (auto* gemm = std::get_if<Gemm>(&step)) gemm->gates.front().of_parts = false;
    EXPECT_EQ(find(plan).gemms, std::vector<bool>{false});
  }
}

TEST(MayStartEarly, NotWhatReadsWhatOthersWrote) {
  EXPECT_EQ(find(plan_fused(problem(Op::allgather_gemm), gpus(), {}).value()).gemms, std::vector<bool>{false})
      << "its tiles await their rows";
  EXPECT_EQ(find(plan_fused(problem(Op::mlp), gpus(), {}).value()).gemms, (std::vector<bool>{false, false}))
      << "the second reads the first's product";
  const Plan fused = plan_fused(problem(Op::gemm_reducescatter), gpus(), {.helpers = 2}).value();
  const Lane& helpers = fused.ranks[0].lanes[1];
  for (std::size_t i = 0; i < helpers.steps.size(); ++i) EXPECT_FALSE(may_start_early(fused, 0, helpers, i));
  const Plan sequential = plan_sequential(problem(Op::gemm_reducescatter), gpus(), {}).value();
  EXPECT_EQ(find(sequential).gemms, std::vector<bool>{false}) << "there is nothing in front of it";
}

TEST(MayStartEarly, NotWhatOthersHaveOrWhatNoGateTellsOf) {
  Plan plan = plan_fused(problem(Op::gemm_reducescatter), gpus(), {.sums = SumsIn::pass}).value();
  for (Step& step : plan.ranks[0].lanes[0].steps)
    if (auto* gemm = std::get_if<Gemm>(&step))
      gemm->a.rank = 1;
    else if (auto* pass = std::get_if<Elementwise>(&step))
      pass->gates.clear();
  EXPECT_EQ(find(plan).gemms, std::vector<bool>{false}) << "the other rank has to begin first";
  EXPECT_EQ(find(plan).passes, std::vector<bool>{false});
}

TEST(MayStartEarly, NoPassBehindAGemmThatWaitsOrHasNoTiles) {
  for (const bool gated : {true, false}) {
    Plan plan = plan_fused(problem(Op::gemm_reducescatter), gpus(), {.sums = SumsIn::pass}).value();
    for (Step& step : plan.ranks[0].lanes[0].steps)
      if (auto* gemm = std::get_if<Gemm>(&step)) {
        if (gated)
          gemm->gates.push_back({0, {gemm->grid.positions()}, {1}});
        else
          gemm->grid.rows = 0;
      }
    EXPECT_EQ(find(plan).passes, std::vector<bool>{false});
  }
}

TEST(MayStartEarly, TheSimulatorHidesWhatIsInFront) {
  Machine machine = gpus();
  for (const auto& [sums, launches] : {std::pair{SumsIn::pass, 1}, {SumsIn::epilogue, 0}}) {
    Plan plan = plan_fused(problem(Op::gemm_reducescatter), machine, {.sums = sums}).value();
    for (RankPlan& rank : plan.ranks)  // a product that starts early leaves one worker to others
      for (Step& step : rank.lanes[0].steps)
        if (auto* gemm = std::get_if<Gemm>(&step)) gemm->resources.most = machine.workers - 1;
    machine.early_kernels = false;
    const double late = simulate(plan, machine).makespan_us;
    machine.early_kernels = true;
    EXPECT_NEAR(simulate(plan, machine).makespan_us, late - machine.sync_us - launches * machine.launch_us,
                1e-6)
        << "the handshake, and the launch of the sums";
  }
}

TEST(MostWorkers, OfAProductThatWaitsLeaveOneFree) {
  Gemm product;
  EXPECT_EQ(most_workers(product, 132, false), 132);
  EXPECT_EQ(most_workers(product, 132, true), 131);
  product.gates.resize(2);
  product.gates[0].of_parts = true;
  EXPECT_EQ(most_workers(product, 132, false), 131);
  product.gates[1].of_parts = true;
  EXPECT_EQ(most_workers(product, 132, false), 132);
  product.resources.most = 100;
  product.gates[1].of_parts = false;
  EXPECT_EQ(most_workers(product, 132, false), 100) << "one is free as it is";
  EXPECT_EQ(most_workers(product, 1, true), 1);
}

TEST(TilesOfCluster, ArePairsAlongMWhereTheOrderKeepsThem) {
  EXPECT_EQ(tiles_of_cluster(make_grid(1024, 1024, 128, 256, {Raster::along_m, 4, 2, 1, 0})), 2);
  EXPECT_EQ(tiles_of_cluster(make_grid(1024, 1024, 128, 256, {Raster::along_n, 1, 1, 1, 0})), 1);
  EXPECT_EQ(tiles_of_cluster(make_grid(1024, 1024, 64, 256, {Raster::along_m, 4, 2, 1, 0})), 1);
}

TEST(KSplit, IsOfSomeTilesForLargeTilesWithoutCountedRows) {
  Gemm product;
  const auto of = [&](std::int32_t rows, std::int32_t cols) {
    product.grid = make_grid(1024, 1024, rows, cols, {});
    return k_split(product);
  };
  EXPECT_EQ(of(128, 256), KSplit::some);
  EXPECT_EQ(of(128, 128), KSplit::all);
  EXPECT_EQ(of(64, 256), KSplit::all);
  product.epilogue.activation = Activation::swiglu;
  EXPECT_EQ(of(128, 128), KSplit::some) << "twice as many columns of B";
  product.sums.from.resize(1);
  EXPECT_EQ(of(128, 256), KSplit::all) << "own tiles wait for parts";
  product.live.buffer = 0;
  EXPECT_EQ(of(128, 128), KSplit::none);
}

TEST(WeightsEarly, OfAGemmBesideADelivery) {
  Machine machine = gpus();
  machine.peer_memory = true;
  const auto early = [&](const Plan& plan) {
    std::vector<bool> found;
    const Lane& lane = plan.ranks[0].lanes[0];
    for (std::size_t i = 0; i < lane.steps.size(); ++i)
      if (std::holds_alternative<Gemm>(lane.steps[i])) found.push_back(weights_early(plan, 0, lane, i));
    return found;
  };
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm})
    EXPECT_EQ(early(plan_low_latency(problem(op), machine, {}).value()), std::vector<bool>{true}) << name(op);
  EXPECT_EQ(early(plan_sequential(problem(Op::gemm_allreduce), machine, {}).value()),
            std::vector<bool>{false});
  Plan plan = plan_low_latency(problem(Op::gemm_allreduce), machine, {}).value();
  auto& gemm = std::get<Gemm>(plan.ranks[0].lanes[0].steps[0]);
  gemm.b = gemm.out.slice;
  EXPECT_EQ(early(plan), std::vector<bool>{false}) << "B is no input";
}

TEST(SendsUntil, TheEndOfTheDeliveryThatAloneReadsTheProduct) {
  Machine machine = gpus();
  machine.peer_memory = true;
  const auto until = [](const Plan& plan) { return sends_until(plan, 0, plan.ranks[0].lanes[0], 0); };
  const Plan plan = plan_low_latency(problem(Op::gemm_allreduce), machine, {}).value();
  EXPECT_EQ(until(plan), plan.ranks[0].lanes[0].steps.size());
  const LaunchProgram program = lower(plan);
  ASSERT_EQ(program.ranks[0].launches.size(), 2u);
  EXPECT_EQ(program.ranks[0].launches[0].sends_until, program.ranks[0].launches[1].last);
  EXPECT_EQ(program.ranks[0].launches[1].sent_by, 0);
  EXPECT_GT(until(plan_low_latency(problem(Op::gemm_reducescatter), machine, {}).value()), 0u);
  const Plan two_hops = plan_low_latency(problem(Op::gemm_allreduce), machine, {.hops = 2}).value();
  EXPECT_GT(until(two_hops), 0u);
  EXPECT_LT(until(two_hops), two_hops.ranks[0].lanes[0].steps.size()) << "the second delivery sends sums";
  EXPECT_EQ(until(plan_low_latency(problem(Op::allgather_gemm), machine, {}).value()), 0u);
  EXPECT_EQ(until(plan_sequential(problem(Op::gemm_allreduce), machine, {}).value()), 0u);
}

TEST(SendsUntil, NothingIfTheProductIsUsedElsewhere) {
  Machine machine = gpus();
  machine.peer_memory = true;
  Plan plan = plan_low_latency(problem(Op::gemm_allreduce), machine, {}).value();
  Lane& lane = plan.ranks[0].lanes[0];
  const std::int32_t product = std::get<Gemm>(lane.steps[0]).out.slice.buffer;
  lane.steps.push_back(lane.steps[4]);
  EXPECT_EQ(sends_until(plan, 0, lane, 0), 0u) << "a pass behind the delivery sends it again";
  lane.steps.pop_back();
  ASSERT_GT(sends_until(plan, 0, lane, 0), 0u);
  plan.buffers[static_cast<std::size_t>(product)].role = Role::out;
  EXPECT_EQ(sends_until(plan, 0, lane, 0), 0u) << "the user reads it";
}

/// Names of the lanes of rank 0 whose streams have a higher priority.
std::vector<std::string> urgent_lanes(const Plan& plan) {
  std::vector<std::string> names;
  const RankPlan& rank = plan.ranks[0];
  const std::vector<bool> urgent = lower(plan).ranks[0].urgent;
  EXPECT_EQ(urgent.size(), rank.lanes.size());
  for (std::size_t lane = 0; lane < urgent.size(); ++lane)
    if (urgent[lane]) names.push_back(rank.lanes[lane].name);
  return names;
}

TEST(Urgent, PassesBesideAttentionOnly) {
  const std::vector<std::string> push{"push"};
  for (const Op op : {Op::ulysses_attention, Op::allgather_attention, Op::attention_backward}) {
    Problem attention{.op = op, .world = 4, .m = 128, .n = 64, .k = 64};
    attention.attention = {8, 4, 8};
    EXPECT_EQ(urgent_lanes(plan_ring(attention, gpus(), {.mover = Mover::store}).value()), push) << name(op);
    for (const RingParams& params : {RingParams{}, RingParams{.engines = 2}})
      EXPECT_TRUE(urgent_lanes(plan_ring(attention, gpus(), params).value()).empty()) << name(op);
    EXPECT_TRUE(urgent_lanes(plan_sequential(attention, gpus()).value()).empty()) << name(op);
  }
  const FusedParams helpers{.helpers = 2, .mover = Mover::store};
  EXPECT_TRUE(urgent_lanes(plan_fused(problem(Op::allgather_gemm), gpus(), helpers).value()).empty())
      << "a GEMM leaves SMs to them";
}

TEST(Urgent, NotPassesThatWaitForATile) {
  RankPlan rank{{{LaneKind::compute, "compute", {Attend{}}}, {LaneKind::compute, "push", {Elementwise{}}}},
                {}};
  EXPECT_TRUE(is_urgent(rank, rank.lanes[1]));
  EXPECT_FALSE(is_urgent(rank, rank.lanes[0]));
  std::get<Elementwise>(rank.lanes[1].steps[0]).gates.resize(1);
  EXPECT_FALSE(is_urgent(rank, rank.lanes[1])) << "they would keep SMs from the attention meanwhile";
}

}  // namespace
}  // namespace shingle::early_test::launch_rules_test
