// Who sums in plans of `fused`, when, and in which order.
#include <gtest/gtest.h>

#include <set>

#include "backend/remote.hpp"
#include "fused_plans.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/plan_edit.hpp"

namespace shingle::fused_sums_plan_test {
namespace {

using namespace test::fused;

TEST(FusedSumsPlan, SumsAreInRankOrderBesideTheGemmAndAfterIt) {
  const Plan plan = plan_fused(problem(Op::gemm_reducescatter, 4, 200), machine(64), {.helpers = 2}).value();
  EXPECT_EQ(chosen(plan).helpers, 2);
  for (const RankPlan& rank : plan.ranks) {
    ASSERT_EQ(rank.lanes.size(), 2u);
    std::vector<const Elementwise*> passes;
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps)
        if (const auto* pass = std::get_if<Elementwise>(&step)) passes.push_back(pass);
    ASSERT_EQ(passes.size(), 2u);
    EXPECT_EQ(passes[0]->queue, passes[1]->queue);
    EXPECT_GE(passes[0]->queue, 0);
    EXPECT_EQ(passes[0]->resources.most + passes[1]->resources.most, 64);
    for (std::size_t s = 1; s < passes[0]->from.size(); ++s)
      EXPECT_GT(passes[0]->from[s].slice.row, passes[0]->from[s - 1].slice.row);
  }
  EXPECT_TRUE(verify(plan));
}

TEST(FusedSumsPlan, SumsThatAnOutputCannotTakeGoOnToItBandByBand) {
  FusedParams params{.tile = {.order = {Raster::along_m, 1, 1, 1, 0}},  // bands of columns
                     .helpers = 4,
                     .unregistered = true};
  const Problem p = problem(Op::gemm_allreduce, 4, 200);
  const Plan plan = plan_fused(p, machine(64), params).value();
  EXPECT_TRUE(verify(plan));
  EXPECT_TRUE(remote_user_buffers(plan).empty());
  for (const RankPlan& rank : plan.ranks) {
    ASSERT_EQ(rank.lanes.size(), 3u);
    EXPECT_EQ(rank.lanes[2].name, "fill");
    const auto& beside = std::get<Elementwise>(rank.lanes[2].steps.back());
    const auto& behind = std::get<Elementwise>(rank.lanes[0].steps.back());
    EXPECT_EQ(beside.queue, behind.queue);
    EXPECT_EQ(beside.resources.most, 1) << "a helper in eight, but one";
    ASSERT_EQ(behind.gates.size(), 1u);
    const TileGate& gate = behind.gates.front();
    EXPECT_EQ(gate.ends.size(), 3u * 4) << "a band of columns of each shard";
    EXPECT_EQ(std::set<std::int32_t>(gate.entries.begin(), gate.entries.begin() + 4),
              (std::set<std::int32_t>{0, 3, 6, 9}))
        << "the first band of all ranks comes first";
    EXPECT_EQ(find_buffer(plan, Role::out), behind.to.slice.buffer);
  }
  params.unregistered = false;
  EXPECT_FALSE(remote_user_buffers(plan_fused(p, machine(64), params).value()).empty());
}

TEST(FusedSumsPlan, GoesWithoutHelpersAndInOneOrderOnAllRanks) {
  const FusedParams params{.helpers = FusedParams::no_helpers, .comm_order = CommOrder::same};
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce}) {
    const Plan plan = plan_fused(problem(op, 4, 200), machine(64), params).value();
    EXPECT_EQ(chosen(plan).helpers, FusedParams::no_helpers);
    EXPECT_EQ(plan_from_json(to_json(plan)).params, plan.params);
    for (const RankPlan& rank : plan.ranks) EXPECT_EQ(rank.lanes.size(), 1u) << "nobody sums beside the GEMM";
    EXPECT_TRUE(verify(plan));
  }
  EXPECT_FALSE(plan_fused(problem(Op::allgather_gemm, 4, 200), machine(64), params))
      << "a rank gathers its own rows first";
}

TEST(FusedSumsPlan, OneShotHasNothingToRotate) {
  Machine slow = machine(8);
  slow.link = {10, 50};  // so slow to start that it would be one shot
  FusedParams params{.comm_order = CommOrder::same};
  const FusedParams ordered = chosen(*plan_fused(problem(Op::gemm_allreduce, 4, 8), slow, params));
  EXPECT_FALSE(ordered.one_shot) << "an order was asked for";
  EXPECT_EQ(ordered.comm_order, CommOrder::same);
  params.one_shot = true;
  const Plan plan = plan_fused(problem(Op::gemm_allreduce, 4, 8), slow, params).value();
  EXPECT_EQ(chosen(plan).comm_order, CommOrder::ring);
}

/// Sources that the pass with the norm sums on each rank.
std::vector<std::size_t> summed_with_the_norm(const Plan& plan) {
  std::vector<std::size_t> sources;
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps)
        if (const auto* pass = std::get_if<Elementwise>(&step); pass != nullptr && pass->norm.enabled)
          sources.push_back(pass->from.size());
  return sources;
}

TEST(FusedSumsPlan, OneShotSumsInThePassOfANorm) {
  Problem normed = problem(Op::gemm_allreduce, 3, 64);
  normed.norm = {true, true};
  const auto plan = [&](std::int32_t helpers) {
    return plan_fused(normed, machine(8), {.helpers = helpers, .one_shot = true}).value();
  };
  const Plan at_once = plan(FusedParams::no_helpers), apart = plan(2);
  EXPECT_EQ(summed_with_the_norm(at_once), std::vector<std::size_t>(3, 3));
  EXPECT_EQ(summed_with_the_norm(apart), std::vector<std::size_t>(3, 1)) << "helpers sum beside the product";
  EXPECT_LT(at_once.buffers.size(), apart.buffers.size()) << "sums need no buffer";
  EXPECT_TRUE(verify(at_once));
  EXPECT_TRUE(verify(apart));
}

TEST(FusedSumsPlan, OneShotIsForFewRowsOnASlowToStartLink) {
  Machine slow = machine(8);
  slow.link = {10, 50};  // GB/s, us
  EXPECT_TRUE(chosen(*plan_fused(problem(Op::gemm_allreduce, 4, 8), slow, {})).one_shot);
  EXPECT_FALSE(chosen(*plan_fused(problem(Op::gemm_allreduce, 4, 8192), slow, {})).one_shot);
}

Problem large(Op op, int world, std::int64_t m, std::int64_t k) {
  return {.op = op, .world = world, .m = m, .n = 8192, .k = k, .dtype = DType::bf16};
}

TEST(FusedSumsPlan, OneShotOfTwoRanksIsForFewSums) {
  const Machine two = machine_from_spec("h200x8");
  const auto in_one_shot = [&](std::int64_t m, std::int64_t k, const FusedParams& params = {}) {
    return chosen(*plan_fused(large(Op::gemm_allreduce, 2, m, k), two, params)).one_shot;
  };
  EXPECT_TRUE(in_one_shot(64, 1024));
  EXPECT_FALSE(in_one_shot(2048, 1024)) << "twice the sums, and as many bytes";
  EXPECT_FALSE(in_one_shot(2048, 1024, {.unregistered = true})) << "epilogues store own rows to the output";
  EXPECT_TRUE(in_one_shot(2048, 1024, {.sums = SumsIn::pass, .unregistered = true}))
      << "behind a pass, two hops would fill the output";
  EXPECT_FALSE(in_one_shot(512, 1024, {.stage_fp32 = true})) << "twice the bytes";
  EXPECT_TRUE(in_one_shot(512, 1024));
}

TEST(FusedSumsPlan, PartsOfManyRanksAreSummedInAPass) {
  Machine machine = machine_from_spec("h200x8");
  const auto sums = [&](int world) {
    return chosen(*plan_fused(large(Op::gemm_reducescatter, world, 8192, 3584), machine, {})).sums;
  };
  EXPECT_EQ(sums(2), SumsIn::epilogue) << "the only part lands while the tile is multiplied";
  EXPECT_EQ(sums(3), SumsIn::epilogue) << "the product waits for one part, and a pass reads three";
  EXPECT_EQ(sums(4), SumsIn::pass) << "the product waits for two parts of each tile";
  machine.parts_gbps = 0;
  EXPECT_EQ(sums(4), SumsIn::epilogue) << "the machine does not say what they take";
}

TEST(FusedSumsPlan, OwnTilesOfAScatterWaitIfTheOthersAreNotLongerOnTheWay) {
  const Machine machine = machine_from_spec("h200x8");
  const auto sums = [&](Op op, std::int64_t k) {
    return chosen(*plan_fused(large(op, 2, 4096, k), machine, {})).sums;
  };
  EXPECT_EQ(sums(Op::gemm_reducescatter, 3584), SumsIn::epilogue);
  EXPECT_EQ(sums(Op::gemm_reducescatter, 1792), SumsIn::pass)
      << "the whole product takes longer, half does not";
  EXPECT_EQ(sums(Op::gemm_allreduce, 1792), SumsIn::epilogue) << "own sums use the links";
}

TEST(FusedSumsPlan, AsManySumForAllAsKeepUpWithTheProduct) {
  const Machine machine = machine_from_spec("h200x8");
  const auto helpers = [&](Op op, std::int64_t m, std::int64_t k) {
    return chosen(*plan_fused(large(op, 4, m, k), machine, {.sums = SumsIn::pass})).helpers;
  };
  EXPECT_EQ(helpers(Op::gemm_allreduce, 8192, 3584), 16);
  EXPECT_EQ(helpers(Op::gemm_allreduce, 8192, 7168), 8) << "twice as long";
  EXPECT_EQ(helpers(Op::gemm_allreduce, 8192, 28672), 4);
  EXPECT_EQ(helpers(Op::gemm_allreduce, 2048, 3584), 4) << "of few waves each helper costs one";
  EXPECT_EQ(helpers(Op::gemm_reducescatter, 8192, 3584), 4);
  EXPECT_EQ(helpers(Op::gemm_reducescatter, 8192, 1024), 16) << "the product has time";
}

TEST(FusedSumsPlan, IdleWorkersOfTheLastWaveCopySumsOfTheOtherRank) {
  const Machine machine = machine_from_spec("h200x8");
  const auto helpers = [&](int world, std::int64_t m, std::int64_t k, std::int32_t asked = 0) {
    return chosen(*plan_fused(large(Op::gemm_allreduce, world, m, k), machine,
                              {.helpers = asked, .sums = SumsIn::epilogue, .unregistered = true}))
        .helpers;
  };
  EXPECT_EQ(helpers(2, 2048, 3584), 4) << "512 tiles: 128 workers take as many waves as 132";
  EXPECT_EQ(helpers(2, 2048, 14336), 2) << "more would be idle";
  EXPECT_EQ(helpers(2, 8192, 1024), 0) << "links hold the sums back";
  EXPECT_EQ(helpers(2, 4224, 3584), 0) << "all workers have a tile in the last wave";
  EXPECT_EQ(helpers(4, 2048, 14336), 0) << "sums arrive in the last quarter";
  EXPECT_EQ(helpers(4, 2048, 14336, 6), 6);
}

TEST(FusedSumsPlan, AScatterEndsWithAWaveOfOwnTilesWhereLinksKeepUp) {
  const Machine machine = machine_from_spec("h200x8");
  const auto owners_at_the_end = [&](Op op, std::int64_t k, CommOrder order = CommOrder::ring) {
    const Plan plan =
        plan_fused(large(op, 4, 2048, k), machine, {.sums = SumsIn::pass, .comm_order = order}).value();
    const Gemm& gemm = gemm_of(plan, 1);
    const RowMap& rows = std::get<placement::Owners>(gemm.out.form).rows;
    std::set<std::int64_t> owners;
    for (std::int64_t i = gemm.grid.positions() - gemm.resources.most; i < gemm.grid.positions(); ++i)
      owners.insert(rows.run_at(gemm.grid.tile(i).m * gemm.grid.tile_rows, 1).matrix_row / 512);
    return owners;
  };
  EXPECT_EQ(owners_at_the_end(Op::gemm_reducescatter, 3584), std::set<std::int64_t>{1});
  EXPECT_GT(owners_at_the_end(Op::gemm_reducescatter, 1024).size(), 1u) << "the links do not";
  EXPECT_GT(owners_at_the_end(Op::gemm_reducescatter, 3584, CommOrder::interleaved).size(), 1u);
  EXPECT_GT(owners_at_the_end(Op::gemm_allreduce, 3584).size(), 1u)
      << "sums that go to all have to begin early";
}

}  // namespace
}  // namespace shingle::fused_sums_plan_test
