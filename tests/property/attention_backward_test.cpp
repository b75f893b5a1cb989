// Backward of ring attention, whatever its heads, sequences, ranks, order of tokens and slices: plans are
// proven, gradients right, and nothing is sent that is not needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "report/trace.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "support/host_runs.hpp"
#include "support/ring_attention.hpp"
#include "support/sent.hpp"

namespace shingle::attention_backward_test {
namespace {

using test::attention_backward;
using test::AttentionDraw;
using test::contiguous;
using test::zigzag;

std::vector<Params> forms() {
  return {SequentialParams{},
          RingParams{},
          RingParams{.slices = 3},
          RingParams{.engines = 1},
          RingParams{.engines = 2, .slices = 2},
          RingParams{.mover = Mover::store, .slices = 2}};
}

TEST(AttentionBackward, IsRightForAnyHeadsSequencesAndRanks) {
  AttentionDraw draw(29);
  for (int world = 1; world <= 8; ++world)
    for (int i = 0; i < 2; ++i) {
      Problem problem = draw.problem(Op::attention_backward, world, 4, 60);
      if (draw(0, 2) == 0) problem.dtype = DType::bf16;
      test::expect_right(problem, forms());
    }
}

TEST(AttentionBackward, SpansSeveralBlocksOfQueriesAndKeys) {
  test::expect_right(attention_backward(2, 701, {6, 3, 16, true}, zigzag), forms());
  test::expect_right(attention_backward(3, 600, {2, 1, 8}), forms());
  test::expect_right(attention_backward(1, 600, {4, 1, 8, true}), forms());
}

/// More parts than a rank holds at a time, of every gradient.
TEST(AttentionBackward, FoldsPartsOfManyRanks) {
  for (const RowOrder order : {contiguous, zigzag})
    for (const bool causal : {false, true}) {
      Problem problem = attention_backward(8, 130, {2, 1, 4, causal}, order);
      problem.dtype = order == zigzag ? DType::bf16 : DType::f32;
      test::expect_right(problem, forms());
    }
}

TEST(AttentionBackward, HasFewerTokensThanRanks) {
  for (const RowOrder order : {contiguous, zigzag}) {
    test::expect_right(attention_backward(4, 3, {3, 3, 8, true}, order), forms());
    test::expect_right(attention_backward(5, 1, {5, 5, 4}, order), forms());
    test::expect_right(attention_backward(4, 9, {1, 1, 4}, order), forms());
  }
}

TEST(AttentionBackward, IsProvenForAnyRaggedShards) {
  AttentionDraw draw(31);
  for (int i = 0; i < 200; ++i) {
    const Problem problem = draw.problem(Op::attention_backward, static_cast<int>(draw(1, 9)), 5, 17);
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

TEST(AttentionBackward, IsProvenInWorkThatGrowsWithItsTokensAndNotWithTheirSquare) {
  for (const RowOrder order : {contiguous, zigzag})
    for (const Params& params : forms()) {
      const auto accesses = [&](std::int64_t tokens) {
        const auto plan = make_plan(attention_backward(2, tokens, {4, 4, 1, true}, order), Machine{}, params);
        const Proof proof = verify(*plan);
        EXPECT_TRUE(proof) << proof.failure;
        return static_cast<double>(proof.accesses);
      };
      EXPECT_LT(accesses(8192) / accesses(4096), 2.1) << name(mechanism_of(params));
    }
}

TEST(AttentionBackward, ReturnsOnePartOfEachRowThatWasSent) {
  constexpr int world = 4;
  constexpr std::int64_t shard = 8, tokens = world * shard;
  for (const RingParams& params : {RingParams{}, RingParams{.engines = 2, .slices = 2},
                                   RingParams{.mover = Mover::store, .slices = 2}}) {
    const auto sent = [&](Attention attention, RowOrder order) {
      const Plan plan =
          plan_ring(attention_backward(world, tokens, std::move(attention), order), {}, params).value();
      std::vector<std::int64_t> rows;
      for (int rank = 0; rank < world; ++rank) rows.push_back(test::sent_rows(plan, rank) / 2);
      return rows;
    };
    EXPECT_THAT(sent({6, 2, 4}, contiguous), testing::Each(2 * (world - 1) * shard));
    // What rank r sends to later ranks, and the parts of what it receives from earlier ones.
    EXPECT_THAT(sent({6, 2, 4, true}, contiguous), testing::Each((world - 1) * shard));
    EXPECT_THAT(sent({6, 2, 4, true, {8, 8, 8, 8}}, contiguous), testing::Each(0));
  }
}

TEST(AttentionBackward, MemoryOfPartsDoesNotGrowWithTheWorld) {
  const auto rows = [](int world, const RingParams& params) {
    const Plan plan =
        plan_ring(attention_backward(world, 8 * world, {1, 1, 4, true}, zigzag), {}, params).value();
    std::int64_t most = 0;
    for (const Buffer& buffer : plan.buffers)
      if (buffer.role == Role::internal) most += std::ranges::max(buffer.rows);
    return most;
  };
  for (const RingParams& params : {RingParams{}, RingParams{.engines = 1}})
    EXPECT_EQ(rows(8, params), rows(32, params));
}

TEST(AttentionBackward, HasReasonsWhereItHasNoPlan) {
  const Problem problem = attention_backward(2, 32, {4, 2, 8});
  for (const Mechanism mechanism : {Mechanism::chunked, Mechanism::signal, Mechanism::fused,
                                    Mechanism::copy_engine, Mechanism::low_latency}) {
    const auto plan = plan_with(problem, {}, default_params(mechanism));
    ASSERT_FALSE(plan.has_value());
    EXPECT_THAT(plan.reason(), testing::HasSubstr("ring")) << name(mechanism);
  }
}

/// In unit costs, lanes wait for no message that takes a thirty-second of a turn. In a zigzag turns are as
/// long on all ranks only two by two: waits for ranks that are behind take up to a thirtieth of the time.
TEST(AttentionBackward, WaitsForLittleWhereMessagesAreShort) {
  for (int world = 2; world <= 8; ++world)
    for (const RowOrder order : {contiguous, zigzag}) {
      const Problem problem = attention_backward(world, 8 * world, {2, 2, 4, order == zigzag}, order);
      const Plan plan = plan_ring(problem, {}, {}).value();
      // An element of Q's gradient costs 2.5 against all keys: world turns of as long.
      const double elements = 8.0 * 8, turn = 2.5 / world;
      const auto end_with = [&](double transfer_us) {
        double end = 0;
        for (const Span& span :
             schematic(plan, {.product_us = 0, .pass_us = 0, .transfer_us = transfer_us, .attend_us = 1})
                 .spans)
          end = std::max(end, span.end_us);
        return end;
      };
      EXPECT_LE(end_with(turn / 64), end_with(0) * (order == zigzag ? 31.0 / 30 : 1) + 1e-6) << world;
      EXPECT_LE(end_with(0), elements * 2.5 * (order == zigzag ? 0.5 + 1.0 / world : 1) + 1e-6) << world;
    }
}

}  // namespace
}  // namespace shingle::attention_backward_test
