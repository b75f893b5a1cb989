// Tensor-parallel experts of tokens that all ranks have: plans are proven, results right, whatever the
// routing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "check/slots.hpp"
#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"
#include "shingle/planner/planner.hpp"
#include "support/host_runs.hpp"
#include "support/random_problem.hpp"

namespace shingle::replicated_tokens_test {
namespace {

using test::Dice;
using ::testing::HasSubstr;

constexpr Op operators[] = {Op::grouped_gemm_allreduce, Op::moe_allreduce};
constexpr Mechanism mechanisms[] = {Mechanism::sequential, Mechanism::signal, Mechanism::fused};

/// Half of them with a capacity, also one that most choices do not fit.
Problem random_tokens(Dice& dice, int most_ranks = 6) {
  Problem problem;
  do problem = test::random_problem(dice, {.world = most_ranks, .m = 60, .n = 60, .k = 32});
  while (!problem.traits().replicates_tokens());
  if (test::chance(dice, 50)) test::give_capacity(dice, problem, 40);
  return problem;
}

std::shared_ptr<const Routing> random_choices(Dice& dice, const Problem& problem) {
  return problem.has_slots() ? test::random_choices(dice, problem) : nullptr;
}

std::vector<Params> forms(Dice& dice, const Problem& problem) {
  auto fused = std::get<FusedParams>(test::random_params(dice, problem, Mechanism::fused));
  auto signal = std::get<SignalParams>(test::random_params(dice, problem, Mechanism::signal));
  fused.helpers = test::chance(dice, 50) ? 1 : FusedParams::no_helpers;  // of two workers
  signal.helpers = test::chance(dice, 50) ? 1 : FusedParams::no_helpers;
  return {SequentialParams{}, signal, SignalParams{.tile = {.cols = 8}, .group_waves = {1, 2, 1}}, fused,
          FusedParams{}};
}

TEST(ReplicatedTokens, AreRightForAnyRouting) {
  Dice dice(51);
  for (int i = 0; i < 120 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const Problem problem = random_tokens(dice);
    test::expect_right(problem, forms(dice, problem), random_choices(dice, problem));
  }
}

TEST(ReplicatedTokens, AreProvenForAnyTilesAndOrder) {
  Dice dice(52);
  int planned = 0;
  for (int i = 0; i < 120; ++i) {
    const Problem problem = random_tokens(dice);
    const Machine machine = test::random_machine(dice);
    for (const Mechanism mechanism : mechanisms) {
      const auto plan = make_plan(problem, machine, test::random_params(dice, problem, mechanism));
      if (!plan) continue;  // the machine has too few workers
      ++planned;
      ASSERT_NO_FATAL_FAILURE(test::expect_proven(*plan));
    }
  }
  EXPECT_GT(planned, 200);
}

/// Bytes of the outputs of all ranks.
std::vector<std::byte> results_of(const Problem& problem, const Params& params,
                                  std::shared_ptr<const Routing> choices) {
  const auto world = make_world(problem.world, {.backend = "host", .workers_per_rank = 2});
  const auto inputs = random_inputs(problem, 3, Values::integers, std::move(choices));
  Operator op(*world, problem, {.params = params});
  Workspace memory(*world, *inputs);
  memory.bind(op);
  memory.poison_outputs();
  op.run(2);
  std::vector<std::byte> all;
  for (const Output& output : memory.outputs())
    if (output.role == Role::out) {
      const auto* const bytes = static_cast<const std::byte*>(output.memory);
      all.insert(all.end(), bytes, bytes + bytes_of(problem, Role::out, output.rank));
    }
  return all;
}

/// All mechanisms, routings of host and device, and all ranks give the same bits where sums are exact.
TEST(ReplicatedTokens, HaveTheSameSumsOnAllRanks) {
  Dice dice(53);
  for (int i = 0; i < 30; ++i) {
    Problem known{.op = operators[i % 2], .world = static_cast<int>(dice.size(1, 5)), .n = 40, .k = 16};
    if (known.traits().chains()) known.inner = 12;
    known.experts = {7, 2};
    std::vector<std::int32_t> dest;
    known.m = dice.size(1, 50);
    for (std::int64_t row = 0; row < 2 * known.m; ++row)
      dest.push_back(static_cast<std::int32_t>(dice.size(0, 6)));
    const auto choices =
        std::make_shared<const Routing>(Routing::to_experts({dest}, 7, ExpertSplit::by_slice));
    known.routing = choices;
    const std::vector<std::byte> all = results_of(known, SequentialParams{}, {});
    const std::size_t each = all.size() / static_cast<std::size_t>(known.world);
    for (int rank = 1; rank < known.world; ++rank)
      EXPECT_EQ(std::memcmp(all.data(), all.data() + static_cast<std::size_t>(rank) * each, each), 0);
    for (const Params& params : {Params(SignalParams{.tile = {.cols = 8}}), Params(FusedParams{}),
                                 Params(FusedParams{.helpers = 1, .one_shot = true})})
      EXPECT_EQ(results_of(known, params, {}), all) << describe(known);
    if (known.traits().takes_tokens()) {  // rows by expert of slots are others
      Problem slots = known;
      slots.experts.capacity = static_cast<std::int32_t>(2 * known.m);
      slots = with_m(slots, known.m);
      for (const Mechanism mechanism : mechanisms)
        EXPECT_EQ(results_of(slots, default_params(mechanism), choices), all) << describe(slots);
    }
  }
}

/// In a call all ranks may have fewer tokens. Matrices end with the last one.
TEST(ReplicatedTokens, OnePlanServesAnyRouting) {
  Dice dice(54);
  for (const Op op : operators)
    for (const Mechanism mechanism : mechanisms) {
      Problem problem{.op = op, .world = 4, .n = 16, .k = 24, .experts = {6, 2, 20}};
      if (problem.traits().chains()) problem.inner = 12;
      problem = with_m(problem, 20);
      const auto world = make_world(4, {.backend = "host", .workers_per_rank = 2});
      Context context(*world, {.verify = true});
      const int declared = context.declare(problem, {default_params(mechanism)});
      for (int i = 0; i < 40; ++i) {
        const auto choices = test::random_choices(dice, problem);
        const auto inputs = random_inputs(problem, static_cast<std::uint64_t>(i), Values::normal, choices);
        Workspace memory(*world, *inputs);
        memory.poison_outputs();
        const std::int64_t tokens = choices->rows(0) / problem.experts.topk;
        std::vector<Argument> arguments = memory.arguments(problem);
        for (Argument& one : arguments)
          if (counts_tokens(problem, one.role)) one.matrix.shape.rows = tokens;
        const auto bytes = [&](int rank, Role role) {
          return static_cast<std::byte*>(const_cast<void*>(memory.data(rank, role)));
        };
        const auto behind = [&](int rank, Role role) {
          const std::int64_t all = bytes_of(problem, role, rank), used = all / problem.m * tokens;
          return std::span(bytes(rank, role) + used, static_cast<std::size_t>(all - used));
        };
        for (int rank = 0; rank < 4; ++rank)
          for (const Role role : {Role::topk_ids, Role::topk_weights, Role::a})
            if (counts_tokens(problem, role))
              std::ranges::fill(behind(rank, role), role == Role::topk_ids ? std::byte{0} : std::byte{0xff});
        context.call(declared, problem.m, arguments);
        context.synchronize();
        for (int rank = 0; rank < 4; ++rank) {
          EXPECT_TRUE(
              std::ranges::all_of(behind(rank, Role::out), [](std::byte b) { return b == std::byte{0xff}; }));
          // The reference has rows of zeros for tokens that no rank has.
          std::ranges::fill(behind(rank, Role::out), std::byte{0});
        }
        const Check result = check(*inputs, memory.outputs());
        EXPECT_TRUE(result.passed) << describe(problem) << ": " << result.max_error << " at " << result.worst;
      }
    }
}

TEST(ReplicatedTokens, NeedOneRouting) {
  Problem problem{.op = Op::moe_allreduce, .world = 2, .m = 3, .n = 8, .k = 8, .inner = 8, .experts = {4, 1}};
  problem.routing =
      std::make_shared<const Routing>(Routing::to_experts({{0, 1, 2}, {0, 1, 2}}, 4, ExpertSplit::by_slice));
  EXPECT_THAT([&] { problem.validate(); },
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("moe+allreduce needs one source")));
  problem.routing =
      std::make_shared<const Routing>(Routing::to_experts({{0, 1, 2}}, 4, ExpertSplit::by_slice));
  EXPECT_NO_THROW(problem.validate());
  const auto chunked = plan_chunked(problem, {}, {});
  ASSERT_FALSE(chunked);
  EXPECT_THAT(chunked.reason(), HasSubstr("use signal or fused"));
}

/// A strip of columns is summed, and leaves, while the next is multiplied.
TEST(ReplicatedTokens, LeaveInStripsOfColumns) {
  Problem problem{.op = Op::moe_allreduce, .world = 4, .m = 64, .n = 256, .k = 16, .inner = 16};
  problem.experts = {4, 2};
  std::vector<std::int32_t> dest;
  for (std::int32_t row = 0; row < 128; ++row) dest.push_back(row % 4);
  problem.routing = std::make_shared<const Routing>(Routing::to_experts({dest}, 4, ExpertSplit::by_slice));
  Machine machine;
  machine.workers = 8, machine.collective_workers = 1;
  const TileParams tile{.rows = 16, .cols = 16};
  const auto passes = [](const Plan& plan) {
    std::vector<std::int64_t> cols;
    for (const Step& step : plan.ranks[1].lanes.front().steps)
      if (const auto* const pass = std::get_if<Elementwise>(&step); pass != nullptr && pass->from.size() == 2)
        cols.push_back(pass->grid.cols);
    return cols;
  };
  const Plan signal = plan_signal(problem, machine, {.tile = tile, .group_waves = {1, 2, 1}}).value();
  EXPECT_EQ(passes(signal), (std::vector<std::int64_t>{64, 128, 64}));
  const Plan narrow =
      plan_signal(problem, machine, {.tile = {.cols = 128}, .group_waves = {5, 1, 1, 1, 1, 1}}).value();
  EXPECT_EQ(passes(narrow).size(), 2u) << "no more strips than columns of tiles";
  EXPECT_EQ(passes(plan_fused(problem, machine, {.tile = tile, .helpers = 2}).value()).size(), 8u);
  EXPECT_EQ(passes(plan_fused(problem, machine, {.tile = tile, .helpers = FusedParams::no_helpers}).value()),
            (std::vector<std::int64_t>{256}));
}

}  // namespace
}  // namespace shingle::replicated_tokens_test
