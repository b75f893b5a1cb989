// Ring attention, whatever its heads, sequences, ranks, order of tokens and slices: plans are proven, results
// right, and nothing is sent or computed that is not needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "report/trace.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/host_runs.hpp"
#include "support/ring_attention.hpp"
#include "support/sent.hpp"

namespace shingle::ring_attention_test {
namespace {

using test::AttentionDraw;
using test::contiguous;
using test::ring_attention;
using test::zigzag;

std::vector<Params> forms() {
  std::vector<Params> forms{SequentialParams{}};
  for (const int slices : {0, 2, 5}) forms.push_back(RingParams{.slices = slices});
  forms.push_back(RingParams{.engines = 1});
  forms.push_back(RingParams{.engines = 3, .slices = 3});
  forms.push_back(RingParams{.mover = Mover::store, .slices = 2});
  return forms;
}

TEST(RingAttention, IsRightForAnyHeadsSequencesAndRanks) {
  AttentionDraw draw(13);
  for (int world = 1; world <= 8; ++world)
    for (int i = 0; i < 2; ++i) {
      Problem problem = draw.problem(Op::allgather_attention, world, 4, 60);
      if (draw(0, 2) == 0) problem.dtype = DType::bf16;
      test::expect_right(problem, forms());
    }
}

TEST(RingAttention, SpansSeveralBlocksOfQueriesAndKeys) {
  test::expect_right(ring_attention(2, 701, {6, 3, 16, true}, zigzag), forms());
  test::expect_right(ring_attention(3, 600, {2, 1, 8}), forms());
  test::expect_right(ring_attention(6, 500, {2, 2, 8, true}), forms());
}

TEST(RingAttention, HasFewerTokensThanRanks) {
  for (const RowOrder order : {contiguous, zigzag}) {
    test::expect_right(ring_attention(4, 3, {3, 3, 8, true}, order), forms());
    test::expect_right(ring_attention(5, 1, {5, 5, 4}, order), forms());
    test::expect_right(ring_attention(4, 9, {1, 1, 4}, order), forms());
    test::expect_right(ring_attention(3, 7, {2, 1, 4, true}, order), forms());
  }
}

TEST(RingAttention, IsProvenForAnyRaggedShards) {
  AttentionDraw draw(17);
  for (int i = 0; i < 200; ++i) {
    const Problem problem = draw.problem(Op::allgather_attention, static_cast<int>(draw(1, 9)), 5, 17);
    const RingParams ring{.slices = static_cast<std::int32_t>(draw(0, 5))};
    const RingParams engines{.engines = static_cast<std::int32_t>(draw(1, 4)),
                             .slices = static_cast<std::int32_t>(draw(0, 5))};
    const RingParams stores{.mover = Mover::store, .slices = static_cast<std::int32_t>(draw(0, 5))};
    for (const Plan& plan :
         {plan_sequential(problem, {}).value(), plan_ring(problem, {}, ring).value(),
          plan_ring(problem, {}, engines).value(), plan_ring(problem, {}, stores).value()}) {
      ASSERT_NO_FATAL_FAILURE(test::expect_proven(plan));
      EXPECT_EQ(plan_with(problem, {}, params_of(plan)).value(), plan);
    }
  }
}

TEST(RingAttention, IsProvenInWorkThatGrowsWithItsTokensAndNotWithTheirSquare) {
  for (const RowOrder order : {contiguous, zigzag})
    for (const Params& params : forms()) {
      const auto accesses = [&](std::int64_t tokens) {
        const auto plan = make_plan(ring_attention(2, tokens, {4, 4, 1, true}, order), Machine{}, params);
        const Proof proof = verify(*plan);
        EXPECT_TRUE(proof) << proof.failure;
        return static_cast<double>(proof.accesses);
      };
      EXPECT_LT(accesses(8192) / accesses(4096), 2.1) << name(mechanism_of(params));
    }
}

/// Scores that a rank has to compute.
std::int64_t scores_of(const Problem& problem, const RankPlan& rank) {
  std::int64_t scores = 0;
  for (const Lane& lane : rank.lanes)
    for (const Step& step : lane.steps)
      if (const auto* attend = std::get_if<Attend>(&step))
        for (std::int64_t query = 0; query < attend->grid.rows; ++query)
          scores += common(problem.seen_by(attend->first_token + query, 1),
                           {attend->first_key, attend->first_key + attend->keys.rows})
                        .count();
  return scores;
}

TEST(RingAttention, SendsOnlyKeysThatAreSeen) {
  constexpr int world = 4;
  constexpr std::int64_t shard = 8, tokens = world * shard, cols = 2 * 2 * 4;  // K and V, two heads of 4
  for (const RingParams& params : {RingParams{}, RingParams{.engines = 2, .slices = 2},
                                   RingParams{.mover = Mover::store, .slices = 2}}) {
    const auto sent = [&](Attention attention, RowOrder order) {
      const Plan plan =
          plan_ring(ring_attention(world, tokens, std::move(attention), order), {}, params).value();
      std::vector<std::int64_t> rows;
      for (int rank = 0; rank < world; ++rank) rows.push_back(test::sent_elements(plan, rank) / cols);
      return rows;
    };
    EXPECT_THAT(sent({6, 2, 4}, contiguous), testing::Each((world - 1) * shard));
    EXPECT_THAT(sent({6, 2, 4, true}, contiguous), testing::ElementsAre(24, 16, 8, 0));
    // The first chunk to all ranks; the second to those in front.
    EXPECT_THAT(sent({6, 2, 4, true}, zigzag), testing::ElementsAre(12, 16, 20, 24));
    // A sequence of each rank.
    EXPECT_THAT(sent({6, 2, 4, true, {8, 8, 8, 8}}, contiguous), testing::Each(0));
  }
}

TEST(RingAttention, ReturnsTheLogSumExp) {
  for (const RowOrder order : {contiguous, zigzag})
    for (const bool causal : {false, true})
      for (const int world : {1, 3, 6}) {
        Problem problem = ring_attention(world, 8 * world - 3, {4, 2, 4, causal}, order);
        problem.attention.returns_lse = true;
        EXPECT_THAT(describe(problem), testing::HasSubstr("with log-sum-exp"));
        for (const DType dtype : {DType::f32, DType::bf16}) {
          problem.dtype = dtype;
          test::expect_right(problem, forms());
        }
        // The same steps as without it.
        const auto steps = [&](bool returns_lse) {
          Problem p = problem;
          p.attention.returns_lse = returns_lse;
          std::vector<std::size_t> counts;
          for (const RankPlan& rank : plan_ring(p, {}, {}).value().ranks) counts.push_back(rank.issue.size());
          return counts;
        };
        EXPECT_EQ(steps(true), steps(false));
      }
}

TEST(RingAttention, HasEqualCausalWorkInAZigzag) {
  for (int world = 1; world <= 8; ++world) {
    const Problem problem = ring_attention(world, 6 * world, {1, 1, 4, true}, zigzag);
    const Plan plan = plan_ring(problem, {}, {}).value();
    for (const RankPlan& rank : plan.ranks)
      EXPECT_EQ(scores_of(problem, rank), scores_of(problem, plan.ranks[0])) << world;
  }
}

TEST(RingAttention, MemoryOfPartsDoesNotGrowWithTheWorld) {
  const auto rows = [](int world, const RingParams& params) {
    const Plan plan =
        plan_ring(ring_attention(world, 8 * world, {1, 1, 4, true}, zigzag), {}, params).value();
    std::int64_t most = 0;
    for (const Buffer& buffer : plan.buffers)
      if (buffer.role == Role::internal) most += std::ranges::max(buffer.rows);
    return most;
  };
  for (const RingParams& params : {RingParams{}, RingParams{.engines = 1}, RingParams{.mover = Mover::store}})
    EXPECT_EQ(rows(8, params), rows(32, params));
}

TEST(RingAttention, RefusesWhatDoesNotFit) {
  const auto says = [](const std::function<void(Problem&)>& edit, const char* text) {
    Problem problem = ring_attention(2, 32, {4, 2, 8});
    edit(problem);
    try {
      problem.validate();
      ADD_FAILURE() << "accepted: " << describe(problem);
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  };
  says([](Problem& p) { p.attention.heads = 5; }, "multiple of kv_heads");
  says([](Problem& p) { p.k = 16; }, "k = 16");
  says([](Problem& p) { p.n = 16; }, "n = 16");
  says([](Problem& p) { p.attention.lengths = {16, 17}; }, "33 tokens");
  says([](Problem& p) { p.epilogue.bias = true; }, "takes no transposes, epilogue or norm");
  says([](Problem& p) { p.row_order = RowOrder::block_cyclic, p.row_block = 4; }, "block-cyclic");
  says([](Problem& p) { p.op = Op::ulysses_attention, p.row_order = zigzag; }, "takes no zigzag");
  says([](Problem& p) { p.row_order = zigzag, p.row_block = 4; }, "row_block = 4");
  says([](Problem& p) { p.op = Op::attention_backward, p.attention.returns_lse = true; },
       "attention-backward does not return the log-sum-exp: allgather+attention does");
}

TEST(RingAttention, HasReasonsWhereItHasNoPlan) {
  const Problem problem = ring_attention(2, 32, {4, 2, 8});
  for (const Mechanism mechanism : {Mechanism::chunked, Mechanism::signal, Mechanism::fused,
                                    Mechanism::copy_engine, Mechanism::low_latency}) {
    const auto plan = plan_with(problem, {}, default_params(mechanism));
    ASSERT_FALSE(plan.has_value());
    EXPECT_THAT(plan.reason(), testing::HasSubstr("ring")) << name(mechanism);
  }
}

/// In unit costs, messages that take half as long as the attention beside them are not waited for.
TEST(RingAttention, WaitsForNothingWhereMessagesAreShorterThanAttention) {
  for (int world = 2; world <= 8; ++world)
    for (const RowOrder order : {contiguous, zigzag}) {
      const Problem problem = ring_attention(world, 8 * world, {2, 2, 4, order == zigzag}, order);
      const Plan plan = plan_ring(problem, {}, {}).value();
      // An element of the result costs `attend_us` against all keys: world turns of as long.
      const double elements = 8.0 * 8, turn = 1.0 / world;
      const UnitCosts costs{.product_us = 0, .pass_us = 0, .transfer_us = turn / 8, .attend_us = 1};
      const Timeline timeline = schematic(plan, costs);
      double end = 0;
      for (const Span& span : timeline.spans) end = std::max(end, span.end_us);
      // The two chunks of the last rank are one, half of which is masked.
      EXPECT_LE(end, elements * (order == zigzag ? 0.5 + 0.5 * turn : 1) + 1e-6) << world;
    }
}

}  // namespace
}  // namespace shingle::ring_attention_test
