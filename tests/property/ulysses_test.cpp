// Ulysses, whatever its heads, sequences, ranks and slices: plans are proven and results right, and in unit
// costs nothing but the first keys and values is waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "lower/graph_fitness.hpp"
#include "report/trace.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/host_runs.hpp"
#include "support/ring_attention.hpp"
#include "support/sent.hpp"

namespace shingle::ulysses_test {
namespace {

using test::ulysses;

std::vector<Params> forms() {
  std::vector<Params> forms{SequentialParams{}};
  for (const int slices : {0, 1, 2, 5}) forms.push_back(RingParams{.slices = slices});
  forms.push_back(RingParams{.engines = 1, .slices = 2});
  forms.push_back(RingParams{.engines = 3, .slices = 5, .unregistered = true});
  forms.push_back(RingParams{.mover = Mover::store, .slices = 2});
  forms.push_back(RingParams{.mover = Mover::store, .slices = 5, .unregistered = true});
  return forms;
}

TEST(Ulysses, IsProvenInWorkThatGrowsWithItsTokensAndNotWithTheirSquare) {
  for (const bool causal : {false, true})
    for (const Params& params : forms()) {
      const auto accesses = [&](std::int64_t tokens) {
        const auto plan = make_plan(ulysses(2, tokens, 4, 4, 1, causal), Machine{}, params);
        const Proof proof = verify(*plan);
        EXPECT_TRUE(proof) << proof.failure;
        return static_cast<double>(proof.accesses);
      };
      EXPECT_LT(accesses(8192) / accesses(4096), 2.1) << name(mechanism_of(params));
    }
}

TEST(Ulysses, IsRightForAnyHeadsSequencesAndRanks) {
  std::mt19937 random(13);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  for (int world = 1; world <= 9; ++world) {
    const std::int64_t kv_heads = world * draw(1, 4), heads = kv_heads * draw(1, 3);
    std::vector<std::int64_t> lengths;
    std::int64_t tokens = 0;
    for (std::int64_t i = draw(1, 4); i > 0; --i) tokens += lengths.emplace_back(draw(1, 60));
    Problem problem = ulysses(world, tokens, heads, kv_heads, 4 * draw(1, 3), world % 2 == 0, lengths);
    if (world % 3 == 0) problem.dtype = DType::bf16;
    test::expect_right(problem, forms());
  }
}

TEST(Ulysses, SpansSeveralBlocksOfQueriesAndKeys) {
  test::expect_right(ulysses(2, 701, 8, 4, 16, true), forms());
  test::expect_right(ulysses(3, 600, 6, 6, 8), forms());
}

TEST(Ulysses, HasFewerTokensThanRanks) {
  test::expect_right(ulysses(4, 3, 8, 8, 8, true), forms());
  test::expect_right(ulysses(5, 1, 5, 5, 4), forms());
  test::expect_right(ulysses(4, 9, 4, 4, 4), forms());  // 3, 3, 3 and none
}

TEST(Ulysses, IsProvenForAnyRaggedShards) {
  std::mt19937 random(17);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  for (int i = 0; i < 150; ++i) {
    const auto world = static_cast<int>(draw(1, 9));
    const std::int64_t kv_heads = world * draw(1, 6), tokens = draw(1, 40);
    Problem problem = ulysses(world, tokens, kv_heads * draw(1, 3), kv_heads, draw(1, 5), draw(0, 1) == 1);
    if (const std::int64_t first = draw(0, 40); first > 0 && first < tokens)
      problem.attention.lengths = {first, tokens - first};
    const RingParams ring{.slices = static_cast<std::int32_t>(draw(0, 9))};
    const RingParams engines{.engines = static_cast<std::int32_t>(draw(1, 4)),
                             .slices = static_cast<std::int32_t>(draw(0, 9)),
                             .unregistered = draw(0, 1) == 1};
    const RingParams stores{.mover = Mover::store,
                            .slices = static_cast<std::int32_t>(draw(0, 9)),
                            .unregistered = draw(0, 1) == 1};
    for (const Plan& plan :
         {plan_sequential(problem, {}).value(), plan_ring(problem, {}, ring).value(),
          plan_ring(problem, {}, engines).value(), plan_ring(problem, {}, stores).value()}) {
      ASSERT_NO_FATAL_FAILURE(test::expect_proven(plan));
      EXPECT_EQ(plan_with(problem, {}, params_of(plan)).value(), plan);
    }
  }
}

/// Nothing is sent that is not needed: every element of Q, K and V of the own tokens but those of the own
/// heads, and of the results all but those of the own tokens.
TEST(Ulysses, SendsEveryElementOnce) {
  for (int world = 1; world <= 6; ++world) {
    const Problem problem = ulysses(world, 23, world * 6, world * 3, 4);
    for (const RingParams& params :
         {RingParams{}, RingParams{.engines = 2}, RingParams{.mover = Mover::store}}) {
      const Plan plan = plan_ring(problem, {}, params).value();
      for (int rank = 0; rank < world; ++rank) {
        const std::int64_t own = problem.a_rows(rank);
        EXPECT_EQ(test::sent_elements(plan, rank),
                  own * (problem.k + 2 * problem.kv_cols()) / world * (world - 1) +
                      (problem.m - own) * problem.k / world);
      }
    }
  }
}

TEST(Ulysses, RefusesWhatDoesNotFit) {
  const auto says = [](const std::function<void(Problem&)>& edit, const char* text) {
    Problem problem = ulysses(2, 32, 4, 2, 8);
    edit(problem);
    try {
      problem.validate();
      ADD_FAILURE() << "accepted: " << describe(problem);
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  };
  says([](Problem& p) { p.attention.heads = 5; }, "multiple of kv_heads");
  says([](Problem& p) { p.attention.kv_heads = 1; }, "not a multiple of");
  says([](Problem& p) { p.k = 16; }, "k = 16");
  says([](Problem& p) { p.n = 16; }, "n = 16");
  says([](Problem& p) { p.attention.lengths = {16, 17}; }, "33 tokens");
  const char* none = "takes no transposes, epilogue or norm";
  says([](Problem& p) { p.transpose_a = true; }, none);
  says([](Problem& p) { p.transpose_b = true; }, none);
  says([](Problem& p) { p.epilogue.bias = true; }, none);
  says([](Problem& p) { p.norm.enabled = true; }, none);
  says([](Problem& p) { p.row_order = RowOrder::block_cyclic; }, "block-cyclic");
}

TEST(Ulysses, HasReasonsWhereItHasNoPlan) {
  const Problem problem = ulysses(2, 32, 4, 2, 8);
  for (const Mechanism mechanism : {Mechanism::chunked, Mechanism::signal, Mechanism::fused}) {
    const auto plan = plan_with(problem, {}, default_params(mechanism));
    ASSERT_FALSE(plan.has_value());
    EXPECT_THAT(plan.reason(), ::testing::HasSubstr("ring"));
  }
  EXPECT_FALSE(plan_ring(problem, {}, {.slices = 1 << 20}).has_value());
  Machine apart;
  apart.peer_memory = false;
  const RingParams stores{.mover = Mover::store};
  EXPECT_THAT(plan_ring(problem, apart, stores).reason(), ::testing::HasSubstr("without --mover"));
  const RingParams both{.engines = 2, .mover = Mover::store};
  EXPECT_THAT(plan_ring(problem, {}, both).reason(), ::testing::HasSubstr("engines = 2 and mover = store"));
  Problem product{.op = Op::gemm_reducescatter, .world = 2, .m = 8, .n = 8, .k = 8};
  EXPECT_THAT(plan_ring(product, {}, stores).reason(), ::testing::HasSubstr("not for gemm+reducescatter"));
}

TEST(Ulysses, TakesAnEngineIfItIsTheMover) {
  const Problem problem = ulysses(2, 32, 4, 2, 8);
  EXPECT_EQ(plan_ring(problem, {}, {.mover = Mover::copy_engine}).value(),
            plan_ring(problem, {}, {.engines = 1}).value());
}

/// Stores need no copy lane, so a graph can hold their plans.
TEST(Ulysses, IsFitForGraphsByStores) {
  for (const std::int32_t slices : {1, 4}) {
    const Problem problem = ulysses(3, 36, 12, 6, 8);
    EXPECT_NE(unfit_for_graph(plan_ring(problem, {}, {.engines = 1, .slices = slices}).value()), "");
    EXPECT_EQ(unfit_for_graph(plan_ring(problem, {}, {.mover = Mover::store, .slices = slices}).value()), "");
  }
}

// --------------------------------------------------------------------------------------------- in unit costs

/// Heads of 8 columns, as many of K as of Q, so that a piece of K and V is two messages long.
Plan unit_plan(int world, int groups, int pieces) {
  Problem p = ulysses(world, 4 * world * pieces, groups * world, groups * world, 8);
  Machine machine;
  machine.workers = 2;
  return plan_ring(p, machine, {.slices = groups * pieces}).value();
}

/// When the last step of any rank ends, in the time that one item takes to compute; `message` is that of its
/// queries, and of its result. Passes cost nothing.
double makespan(const Plan& plan, double message) {
  const double item = 4.0 * 8;
  const Timeline timeline = schematic(plan, {1 / item, 0, message / item});
  return std::ranges::max_element(timeline.spans, {}, &Span::end_us)->end_us;
}

TEST(UlyssesSchedule, WaitsForTheFirstKeysAndValuesOnly) {
  for (int world = 2; world <= 6; ++world)
    for (int groups = 1; groups <= 4; ++groups)
      for (int pieces = 1; pieces <= 3; ++pieces) {
        const Plan plan = unit_plan(world, groups, pieces);
        for (const double message : {0.01, 0.1, 0.2, 0.25}) {  // of four that travel beside an item
          const double items = world * groups * pieces;
          const double first = (world - 1) * pieces * 2 * message + (groups * pieces == 1 ? message : 0);
          EXPECT_NEAR(makespan(plan, message), items + first, 1e-9 * items)
              << world << " ranks, " << groups << " groups, " << pieces << " pieces, a message takes "
              << message;
        }
      }
}

/// Once each of the four that travel beside an item takes as long as it, the link is idle for no longer than
/// one item in all. In between, the items of other ranks' queries take as long as their messages.
TEST(UlyssesSchedule, IsAsLongAsItsMessagesWhereTheyTakeLonger) {
  for (int world = 2; world <= 6; ++world)
    for (int groups = 1; groups <= 4; ++groups)
      for (int pieces = 1; pieces <= 3; ++pieces) {
        const Plan plan = unit_plan(world, groups, pieces);
        for (const double message : {0.3, 0.5, 0.7, 1.0, 2.0, 7.0}) {
          const double first = (world - 1) * pieces * 2 * message + (groups * pieces == 1 ? message : 0);
          const double messages = 4.0 * (world - 1) * groups * pieces * message;
          const double found = makespan(plan, message);
          EXPECT_GE(found, messages * (1 - 1e-9));
          const double most = messages + (message < 1 ? first + groups * pieces : 1);
          EXPECT_LE(found, most * (1 + 1e-9)) << world << " ranks, " << groups << " groups, " << pieces
                                              << " pieces, a message takes " << message;
        }
      }
}

}  // namespace
}  // namespace shingle::ulysses_test
