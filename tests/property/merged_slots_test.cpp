// Tensor-parallel experts whose slots are merged: the results of any ids are those of slots by source.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "check/slots.hpp"
#include "shingle/api/context.hpp"
#include "shingle/planner/planner.hpp"
#include "support/host_runs.hpp"
#include "support/random_problem.hpp"

namespace shingle::merged_slots_test {
namespace {

using test::Dice;

constexpr Op operators[] = {Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp};

Problem random_slots(Dice& dice, int most_ranks = 6) {
  Problem problem;
  do problem = test::random_problem(dice, {.world = most_ranks, .m = 40, .n = 40, .k = 32});
  while (!problem.traits().slices_experts() || problem.traits().replicates_tokens());
  test::give_capacity(dice, problem, 40);
  return problem;
}

FusedParams merged_fused(Dice& dice, const Problem& problem) {
  auto fused = std::get<FusedParams>(test::random_params(dice, problem, Mechanism::fused));
  fused.helpers = test::chance(dice, 50) ? FusedParams::no_helpers : 0;
  fused.slots = SlotOrder::merged;
  return fused;
}

TEST(MergedSlots, AreRightForAnyRouting) {
  Dice dice(31);
  for (int i = 0; i < 150 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const Problem problem = random_slots(dice);
    test::expect_right(problem, {SequentialParams{.slots = SlotOrder::merged}, merged_fused(dice, problem)},
                       test::random_choices(dice, problem));
  }
}

TEST(MergedSlots, AreProvenForAnyTilesAndOrder) {
  Dice dice(32);
  int planned = 0;
  for (int i = 0; i < 80; ++i) {
    const Problem problem = random_slots(dice);
    const Machine machine = test::random_machine(dice);
    for (const Params& params :
         {Params(SequentialParams{.slots = SlotOrder::merged}), Params(merged_fused(dice, problem))}) {
      const auto plan = make_plan(problem, machine, params);
      if (!plan) continue;  // the machine has too few workers
      ++planned;
      ASSERT_NO_FATAL_FAILURE(test::expect_proven(*plan));
    }
  }
  EXPECT_GT(planned, 100);
}

/// Ids of a rank, and what a run stores: the output, what was dropped, and counts if there are any.
using Ids = std::vector<std::int32_t>;
std::vector<std::vector<std::byte>> results_of(const Problem& problem, const Params& params,
                                               const std::vector<Ids>& ids) {
  const auto world = make_world(problem.world, {.backend = "host", .workers_per_rank = 2});
  const auto inputs = random_inputs(problem, 3, Values::integers);  // sums are exact in tiles of any height
  Operator op(*world, problem, {.params = params});
  Workspace memory(*world, *inputs);
  for (int rank = 0; rank < problem.world; ++rank)
    std::memcpy(const_cast<void*>(memory.data(rank, Role::topk_ids)),
                ids[static_cast<std::size_t>(rank)].data(), sizeof(std::int32_t) * ids.front().size());
  memory.bind(op);
  memory.poison_outputs();
  op.executable().poison();
  op.run(2);
  std::vector<std::vector<std::byte>> bits;
  for (int rank = 0; rank < problem.world; ++rank)
    for (const Role role : {Role::out, Role::dropped, Role::counts}) {
      if (find_buffer(op.plan(), role) < 0) continue;
      const auto* const at = static_cast<const std::byte*>(memory.data(rank, role));
      bits.emplace_back(at, at + bytes_of(problem, role, rank));
    }
  return bits;
}

/// Ids of all kinds: experts, one favourite, the same one twice for a token, none, and what is no expert.
std::vector<Ids> random_ids(Dice& dice, const Problem& problem) {
  const std::int32_t experts = problem.experts.count;
  const auto kind = dice.size(0, 4);
  const auto favourite = static_cast<std::int32_t>(dice.size(0, experts - 1));
  std::vector<Ids> ids(static_cast<std::size_t>(problem.world));
  for (Ids& of : ids) {
    const bool none = test::chance(dice, 20);
    for (std::int64_t i = 0; i < problem.m * problem.experts.topk; ++i) {
      if (none || (kind == 1 && test::chance(dice, 50)))
        of.push_back(-1);
      else if (kind == 2)
        of.push_back(favourite);
      else if (kind == 3 && test::chance(dice, 20))
        of.push_back(test::chance(dice, 50) ? experts : -7);
      else
        of.push_back(static_cast<std::int32_t>(dice.size(0, experts - 1)));
    }
  }
  return ids;
}

TEST(MergedSlots, GiveTheBitsOfSlotsBySource) {
  Dice dice(33);
  for (int i = 0; i < 120; ++i) {
    Problem problem = random_slots(dice, 4);
    // Sums are exact if hidden rows are integers.
    if (problem.traits().chains()) problem.epilogue.activation = Activation::relu;
    const std::vector<Ids> ids = random_ids(dice, problem);
    FusedParams fused = merged_fused(dice, problem);
    SequentialParams sequential{.slots = SlotOrder::merged};
    const auto merged = results_of(problem, sequential, ids), merged_too = results_of(problem, fused, ids);
    sequential.slots = fused.slots = SlotOrder::by_source;
    ASSERT_EQ(merged, results_of(problem, sequential, ids)) << i << ": " << describe(problem);
    ASSERT_EQ(merged_too, results_of(problem, fused, ids)) << i << ": " << describe(problem);
  }
}

/// In a call each rank may have its own number of tokens. Matrices end with the last one.
TEST(MergedSlots, OnePlanServesAnyRouting) {
  Dice dice(34);
  for (const Op op : operators)
    for (const Params& params : {Params(SequentialParams{.slots = SlotOrder::merged}),
                                 Params(FusedParams{.slots = SlotOrder::merged})}) {
      Problem problem{.op = op, .world = 4, .n = 16, .k = 24, .experts = {6, 2, 6}};
      if (problem.traits().chains()) problem.inner = 12;
      problem = with_m(problem, 20);
      const auto world = make_world(4, {.backend = "host", .workers_per_rank = 2});
      Context context(*world, {.verify = true});
      const int declared = context.declare(problem, {params});
      for (int i = 0; i < 40; ++i) {
        const auto choices = test::random_choices(dice, problem);
        const auto inputs = random_inputs(problem, static_cast<std::uint64_t>(i), Values::normal, choices);
        Workspace memory(*world, *inputs);
        memory.poison_outputs();
        std::vector<Argument> arguments = memory.arguments(problem);
        for (int rank = 0; rank < 4; ++rank) {
          const std::int64_t tokens = choices->rows(rank) / problem.experts.topk;
          for (Argument& one : arguments)
            if (one.rank == rank && counts_tokens(problem, one.role)) one.matrix.shape.rows = tokens;
          // The reference has rows of zeros for tokens that no rank has.
          for (const Role role : {Role::topk_ids, Role::a, Role::out}) {
            if (!counts_tokens(problem, role)) continue;
            auto* const at = static_cast<std::byte*>(const_cast<void*>(memory.data(rank, role)));
            const std::int64_t all = bytes_of(problem, role, rank), used = all / problem.m * tokens;
            std::memset(at + used, role == Role::a ? 0xff : 0, static_cast<std::size_t>(all - used));
          }
        }
        context.call(declared, problem.m, arguments);
        context.synchronize();
        const Check result = check(*inputs, memory.outputs());
        EXPECT_TRUE(result.passed) << describe(problem) << ": " << result.max_error << " at " << result.worst;
      }
    }
}

}  // namespace
}  // namespace shingle::merged_slots_test
