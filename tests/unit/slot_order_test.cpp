// Where plans have the rows of experts with a capacity: by source or merged, and in which tiles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shingle/api/registry.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::slot_order_test {
namespace {

using ::testing::HasSubstr;

constexpr Op operators[] = {Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp};

/// Experts as Mixtral has, for `tokens` tokens of each of eight ranks.
Problem mixtral(Op op, std::int64_t tokens) {
  Problem problem{.op = op, .world = 8, .n = 4096, .k = 4096, .dtype = DType::bf16};
  problem.transpose_b = true;
  if (problem.traits().chains()) problem.inner = 1792, problem.epilogue.activation = Activation::swiglu;
  if (op == Op::allgather_grouped_gemm) problem.n = 3584, problem.epilogue.activation = Activation::swiglu;
  if (op == Op::grouped_gemm_reducescatter) problem.k = 1792;
  problem.experts = {8, 2, static_cast<std::int32_t>(tokens)};
  return with_m(problem, tokens);
}

SlotOrder order_of(const Plan& plan) {
  const Params params = params_of(plan);
  if (const auto* fused = std::get_if<FusedParams>(&params)) return fused->slots;
  return std::get<SequentialParams>(params).slots;
}

TEST(SlotOrder, IsMergedForFewTokens) {
  const Machine machine = machine_from_spec("h200x8");
  for (const Op op : operators)
    for (const Params& open : {Params(SequentialParams{}), Params(FusedParams{})}) {
      SCOPED_TRACE(name(op));
      for (const std::int64_t tokens : {1, 16, 64}) {
        const Problem problem = mixtral(op, tokens);
        const Plan merged = make_plan(problem, machine, open).value();
        EXPECT_EQ(order_of(merged), SlotOrder::merged) << tokens;
        Params apart = open;
        std::visit(
            [](auto& at) {
              if constexpr (requires { at.slots; }) at.slots = SlotOrder::by_source;
            },
            apart);
        const Plan by_source = make_plan(problem, machine, apart).value();
        EXPECT_LT(simulate(merged, machine).makespan_us, simulate(by_source, machine).makespan_us) << tokens;
      }
      EXPECT_EQ(order_of(make_plan(mixtral(op, 4096), machine, open).value()), SlotOrder::by_source);
    }
}

TEST(SlotOrder, IsOfTensorParallelExpertsWithACapacity) {
  Machine machine;
  machine.workers = 4;
  Problem problem{.op = Op::moe, .world = 2, .n = 8, .k = 8, .inner = 8, .experts = {4, 2, 3}};
  const auto fused = plan_fused(with_m(problem, 6), machine, {.slots = SlotOrder::merged});
  ASSERT_FALSE(fused);
  EXPECT_THAT(fused.reason(), HasSubstr("slots = merged is for tensor-parallel experts with a capacity"));
  const auto in_sequence = plan_sequential(with_m(problem, 6), machine, {.slots = SlotOrder::by_source});
  ASSERT_FALSE(in_sequence);
  problem.op = Op::moe_tp;
  const auto helped = plan_fused(with_m(problem, 6), machine, {.helpers = 1, .slots = SlotOrder::merged});
  ASSERT_FALSE(helped);
  EXPECT_THAT(helped.reason(), HasSubstr("take helpers = none"));
}

/// Rows of the tiles of a plan's first product, and how many tiles start together.
std::pair<int, int> tiles_of(const Problem& problem, const Machine& machine) {
  const Plan plan = make_plan(problem, machine, SequentialParams{}).value();
  for (const Lane& lane : plan.ranks.front().lanes)
    for (const Step& step : lane.steps)
      if (const auto* gemm = std::get_if<Gemm>(&step)) return {gemm->grid.tile_rows, gemm->group_tiles};
  return {};
}

TEST(SlotOrder, TilesSuitTheRowsThatAreExpected) {
  const Machine machine = machine_from_spec("h200x8");
  const auto tiles = [&](std::int64_t tokens, std::int32_t capacity) {
    Problem problem{.op = Op::moe_allreduce, .world = 2, .n = 4096, .k = 4096, .inner = 7168};
    problem.dtype = DType::bf16, problem.transpose_b = true;
    problem.epilogue.activation = Activation::swiglu;
    problem.experts = {8, 2, capacity};
    return tiles_of(with_m(problem, tokens), machine);
  };
  const std::pair low{64, 1}, high{128, 1}, together{128, 2};
  EXPECT_EQ(tiles(16, 16), low) << "4 rows of an expert";
  EXPECT_EQ(tiles(128, 128), low) << "32";
  EXPECT_EQ(tiles(1024, 1024), high) << "256: two tiles or three, one cluster or two";
  EXPECT_EQ(tiles(4096, 4096), together) << "1024";
  EXPECT_EQ(tiles(128, 40), low) << "a capacity of less than a tile";
  EXPECT_EQ(tiles(4096, 1024), together) << "of no more than is expected";
}

}  // namespace
}  // namespace shingle::slot_order_test
