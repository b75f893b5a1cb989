// mlp, whatever its ranks, rows, activation and mechanism: plans are proven and results right, exactly so
// where nothing rounds; plans that are wrong in one place are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "api/workspace.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/plan_edit.hpp"
#include "support/random_problem.hpp"

namespace shingle::mlp_test {
namespace {

using namespace test;

constexpr Mechanism mechanisms[] = {Mechanism::sequential, Mechanism::chunked, Mechanism::ring,
                                    Mechanism::fused};
constexpr Activation activations[] = {Activation::none, Activation::relu, Activation::gelu, Activation::silu,
                                      Activation::swiglu};

Problem mlp(int world, std::int64_t m, Activation activation = Activation::none, DType dtype = DType::f32) {
  Problem p{.op = Op::mlp, .world = world, .m = m, .n = 40, .k = 24, .inner = 36, .dtype = dtype};
  p.epilogue.activation = activation;
  return p;
}

void expect_proven(const Plan& plan) {
  const Proof proof = verify(plan);
  ASSERT_TRUE(proof.ok) << proof.rule << ": " << proof.failure << "\n" << to_text(plan);
  EXPECT_EQ(plan_from_json(to_json(plan)), plan);
}

TEST(Mlp, EveryPlanIsProven) {
  Dice dice(5);
  for (int world = 1; world <= 9; ++world)
    for (const std::int64_t m : {1, 2, 7, 8 * world, 8 * world + 1, 9 * world - 1})
      for (const Activation activation : activations)
        for (const Mechanism mechanism : mechanisms) {
          Problem p = mlp(world, m, activation);
          p.epilogue.bias = chance(dice, 40);
          p.transpose_b = chance(dice, 40);
          p.norm.enabled = chance(dice, 30);
          p.norm.residual = p.norm.enabled && chance(dice, 50);
          Params params = random_params(dice, p, mechanism);
          const auto helpers = static_cast<std::int32_t>(dice.size(0, 2));
          if (auto* fused = std::get_if<FusedParams>(&params)) fused->helpers = helpers;
          Machine machine = random_machine(dice);
          machine.workers += 4;
          const Result<Plan> plan = make_plan(p, machine, params);
          ASSERT_TRUE(plan) << describe(p) << ", " << name(mechanism) << ": " << plan.reason();
          expect_proven(*plan);
        }
}

void expect_right(const Problem& p, const Options& options, Values values, Dice& dice) {
  const auto world = make_world(p.world, {.backend = "host", .workers_per_rank = 3});
  const auto inputs = random_inputs(p, static_cast<std::uint64_t>(dice.size(0, 1 << 20)), values);
  Operator op(*world, p, options);
  Workspace memory(*world, *inputs);
  memory.bind(op);
  memory.poison_outputs();
  op.executable().poison();
  op.run(2);
  const Check result = check(*inputs, memory.outputs());
  EXPECT_TRUE(result.passed) << describe(p) << ", " << name(op.plan().mechanism) << ": " << result.max_error
                             << " above " << result.tolerance << " at " << result.worst << "\n"
                             << to_text(op.plan());
}

TEST(Mlp, IsRightOnTheHost) {
  Dice dice(6);
  for (int world = 1; world <= 9; ++world)
    for (const Mechanism mechanism : mechanisms) {
      Problem p = mlp(world, dice.size(1, 90), activations[dice.size(0, 4)],
                      one_of(dice, {DType::f32, DType::bf16, DType::f16}));
      p.epilogue.bias = chance(dice, 40);
      p.transpose_b = chance(dice, 40);
      Params params = random_params(dice, p, mechanism);
      const auto helpers = static_cast<std::int32_t>(dice.size(0, 1));
      if (auto* fused = std::get_if<FusedParams>(&params)) fused->helpers = helpers;
      const Options options{.params = params};
      expect_right(p, options, Values::normal, dice);
      expect_right(p, options, Values::integers, dice);
    }
}

TEST(Mlp, IsExactWhereNothingRounds) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Activation activation : activations) {
      const Problem p = mlp(3, 20, activation, dtype);
      const auto inputs = random_inputs(p, 1, Values::integers);
      const std::vector<float> nothing(20 * 40);
      const Output output{0, Role::out, nothing.data()};
      const bool exact = activation == Activation::none || activation == Activation::relu;
      EXPECT_EQ(check(*inputs, {&output, 1}).tolerance == 0, exact) << name(activation);
    }
  // Wider than the other operators' bound by what the first product's rounding and the second's sums add.
  EXPECT_GT(tolerance(mlp(3, 20, Activation::gelu, DType::bf16)), 6 * epsilon(DType::bf16));
  EXPECT_LT(tolerance(mlp(3, 20, Activation::gelu, DType::bf16)), 6.01 * epsilon(DType::bf16));
}

TEST(Mlp, IsNormalisedAfterTheSum) {
  Dice dice(8);
  for (const Mechanism mechanism : mechanisms) {
    Problem p = mlp(4, 61, Activation::swiglu);
    p.n = 96;
    p.norm.enabled = p.norm.residual = true;
    expect_right(p, {.params = default_params(mechanism)}, Values::normal, dice);
  }
}

// ----------------------------------------------------------------------------------------------------------
// wrong plans

/// Applies `edit` to the steps of rank 1 of a kind, in order, until it returns true for one; the plan then
/// has to fail by `rule`.
template <class S>
void expect_refused(Mechanism mechanism, const std::string& rule,
                    const std::function<bool(S&, const Plan&)>& edit) {
  Problem p = mlp(3, 50, Activation::relu);
  p.epilogue.bias = true;
  Params params = default_params(mechanism);
  if (auto* chunked = std::get_if<ChunkedParams>(&params)) chunked->chunks = 2;
  if (auto* ring = std::get_if<RingParams>(&params)) ring->slices = 2;
  Machine machine;
  machine.workers = 4;
  machine.tile_rows = machine.tile_cols = 8;
  Plan plan = make_plan(p, machine, params).value();
  ASSERT_TRUE(verify(plan));
  const Plan right = plan;
  for (Lane& lane : plan.ranks[1].lanes)
    for (Step& step : lane.steps)
      if (auto* found = std::get_if<S>(&step); found && edit(*found, right)) {
        const Proof proof = verify(plan);
        EXPECT_FALSE(proof.ok) << name(mechanism) << "\n" << to_text(plan);
        EXPECT_EQ(proof.rule, rule) << name(mechanism) << ": " << proof.failure;
        return;
      }
  FAIL() << name(mechanism) << " has no such step\n" << to_text(right);
}

bool is_second(const Gemm& gemm, const Plan& plan) {
  return gemm.b.buffer == find_buffer(plan, Role::down);
}
bool awaits(const Await& await, const Plan& plan, std::string_view counter) {
  return plan.counters[static_cast<std::size_t>(await.counter.counter)].name == counter;
}

TEST(Mlp, WrongFirstProductsAreRefused) {
  for (const Mechanism mechanism : mechanisms) {
    const auto first = [&](const std::string& rule, const std::function<void(Gemm&)>& spoil) {
      expect_refused<Gemm>(mechanism, rule, [&](Gemm& g, const Plan& plan) {
        if (is_second(g, plan)) return false;
        spoil(g);
        return true;
      });
    };
    first("content", [](Gemm& g) { g.epilogue = {}, g.bias = {}; });  // is never activated
    first("content", [](Gemm& g) { g.epilogue.activation = Activation::gelu; });
    first("content", [](Gemm& g) { g.a_rows.limit = smaller(g.a_rows.limit, 1); });  // one row, no more
  }
}

TEST(Mlp, WrongSecondProductsAreRefused) {
  for (const Mechanism mechanism : mechanisms) {
    const auto second = [&](const std::string& rule, const std::function<void(Gemm&, const Plan&)>& spoil) {
      expect_refused<Gemm>(mechanism, rule, [&](Gemm& g, const Plan& plan) {
        if (!is_second(g, plan)) return false;
        spoil(g, plan);
        return true;
      });
    };
    // Half of the inner columns, of both operands: a product, but not the product.
    second("content", [](Gemm& g, const Plan&) { g.a.cols = g.b.rows = 18; });
    // The halves against each other.
    second("content", [](Gemm& g, const Plan&) { g.a.cols = g.b.rows = 18, g.b.row = 18; });
    second("content", [](Gemm& g, const Plan& plan) {  // the activation a second time
      g.epilogue.activation = plan.problem().epilogue.activation;
    });
    if (mechanism != Mechanism::sequential && mechanism != Mechanism::chunked)
      second("content", [](Gemm& g, const Plan&) { g.a_rows.limit = smaller(g.a_rows.limit, 1); });
  }
  // The partial sums of another slice's place.
  expect_refused<Gemm>(Mechanism::chunked, "race", [](Gemm& g, const Plan& plan) {
    if (!is_second(g, plan) || g.out.slice.row == 0) return false;
    g.out.slice.row = 0;
    return true;
  });
}

TEST(Mlp, MissingOrdersAreRefused) {
  const auto dropped = [](Mechanism mechanism, const char* counter, const std::string& rule) {
    expect_refused<Await>(mechanism, rule, [&](Await& await, const Plan& plan) {
      if (!awaits(await, plan, counter)) return false;
      await.target = 0;
      return true;
    });
  };
  // What has yet to come is nothing.
  dropped(Mechanism::sequential, "arrived", "content");
  dropped(Mechanism::chunked, "arrived", "content");
  dropped(Mechanism::chunked, "computed", "race");  // a slice goes before its second product
  dropped(Mechanism::ring, "arrived", "content");
  dropped(Mechanism::ring, "summed", "race");
  dropped(Mechanism::ring, "exchanged", "race");
  expect_refused<Gemm>(Mechanism::fused, "content", [](Gemm& g, const Plan& plan) {  // gates of the first
    if (is_second(g, plan)) return false;
    g.gates.clear();
    return true;
  });
}

/// The plan with its first and second product exchanged: a second product of what is not there.
TEST(Mlp, ASecondProductBeforeTheFirstIsRefused) {
  for (const Mechanism mechanism : mechanisms) {
    Plan plan = make_plan(mlp(3, 50), {}, default_params(mechanism)).value();
    std::vector<At> gemms;
    for_each_step(plan, [&](const At& at, const Step& step) {
      if (at.rank == 1 && std::holds_alternative<Gemm>(step)) gemms.push_back(at);
    });
    const auto down = std::ranges::find_if(
        gemms, [&](const At& at) { return is_second(std::get<Gemm>(step_of(plan, at)), plan); });
    ASSERT_TRUE(down != gemms.begin() && down != gemms.end());
    std::swap(step_of(plan, *down), step_of(plan, *(down - 1)));
    const Proof proof = verify(plan);
    EXPECT_FALSE(proof.ok) << name(mechanism) << "\n" << to_text(plan);
  }
}

/// One buffer too few: what is kept for the end is overwritten by the next slice's.
TEST(Mlp, StagingThatIsReusedTooSoonIsRefused) {
  expect_refused<Gemm>(Mechanism::ring, "content", [](Gemm& g, const Plan& plan) {
    const auto buffer = [&](std::string_view name) {
      return static_cast<std::int32_t>(std::ranges::find(plan.buffers, name, &Buffer::name) -
                                       plan.buffers.begin());
    };
    if (g.out.slice.buffer != buffer("hidden")) return false;
    g.out.slice.buffer = buffer("kept");
    return true;
  });
  // Two sources in one region of the owners' staging.
  expect_refused<Gemm>(Mechanism::fused, "race", [](Gemm& g, const Plan& plan) {
    if (!is_second(g, plan)) return false;
    g.out.slice.row -= g.out.slice.rows;
    return true;
  });
  // Partial sums that are still on the wire.
  Plan plan = make_plan(mlp(4, 64), {}, RingParams{}).value();
  for (RankPlan& rank : plan.ranks)
    for (Lane& lane : rank.lanes)
      for (Step& step : lane.steps)
        if (auto* g = std::get_if<Gemm>(&step); g && is_second(*g, plan)) g->out.slice.row %= 16;
  EXPECT_FALSE(verify(plan).ok);
}

}  // namespace
}  // namespace shingle::mlp_test
