// Attention, whatever its heads, sequences, ranks and slices: plans are proven and results right; plans that
// are wrong in one place are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "shingle/base/error.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/host_runs.hpp"

namespace shingle::attention_test {
namespace {

Problem attention(int world, std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads, std::int64_t dim,
                  bool causal = false, std::vector<std::int64_t> lengths = {}) {
  Problem p;
  p.op = Op::attention_reducescatter;
  p.world = world;
  p.m = tokens;
  p.n = 24;
  p.k = heads / world * dim;
  p.attention = {heads, kv_heads, dim, causal, std::move(lengths)};
  return p;
}

std::vector<Params> forms() {
  return {SequentialParams{},
          RingParams{.slices = 2},
          RingParams{.slices = 1, .row_parallel = true},
          RingParams{.engines = 1, .slices = 2},
          FusedParams{},
          FusedParams{.stage_fp32 = true}};
}

TEST(Attention, IsRightForAnyHeadsSequencesAndRanks) {
  std::mt19937 random(11);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  for (int world = 1; world <= 8; ++world) {
    const std::int64_t kv_heads = world * draw(1, 2), heads = kv_heads * draw(1, 3);
    std::vector<std::int64_t> lengths;
    std::int64_t tokens = 0;
    for (std::int64_t i = draw(1, 4); i > 0; --i) tokens += lengths.emplace_back(draw(1, 150));
    Problem problem = attention(world, tokens, heads, kv_heads, 8 * draw(1, 3), world % 2 == 0, lengths);
    if (world % 3 == 0) problem.dtype = DType::bf16;
    test::expect_right(problem, forms());
  }
}

TEST(Attention, SpansSeveralBlocksOfKeys) {
  test::expect_right(attention(2, 700, 4, 2, 16, true), forms());
  test::expect_right(attention(2, 600, 2, 2, 16), forms());
}

TEST(Attention, HasFewerTokensThanRanks) {
  test::expect_right(attention(4, 3, 4, 4, 8, true), forms());
}

TEST(Attention, IsFinishedByEpilogueResidualAndNorm) {
  Problem problem = attention(2, 65, 4, 4, 8, true);
  problem.n = 96;
  problem.epilogue.bias = true;
  problem.norm.enabled = problem.norm.residual = true;
  test::expect_right(problem, forms());
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const auto says = [](const std::function<void(Problem&)>& edit, const char* text) {
    Problem problem = attention(2, 32, 4, 2, 8);
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
  says([](Problem& p) { p.k = 15; }, "k = 15");
  says([](Problem& p) { p.attention.lengths = {16, 17}; }, "33 tokens");
  says([](Problem& p) { p.attention.lengths = {32, 0}; }, "length");
  says([](Problem& p) { p.transpose_a = true; }, "transpose_a");
  says([](Problem& p) { p.op = Op::gemm; }, "no attention");
}

/// The plan with the first step of a kind on rank 0 that `edit` accepts changed: it has to fail by `rule`.
template <class S>
void expect_refused(const std::string& rule, const std::function<void(S&)>& edit) {
  const Problem problem = attention(2, 64, 4, 4, 8, true, {40, 24});
  Plan plan = plan_ring(problem, {}, {.slices = 2}).value();
  for (Lane& lane : plan.ranks[0].lanes)
    for (Step& step : lane.steps)
      if (auto* found = std::get_if<S>(&step)) {
        edit(*found);
        const Proof proof = verify(plan);
        EXPECT_FALSE(proof.ok) << to_text(plan);
        EXPECT_EQ(proof.rule, rule) << proof.failure;
        return;
      }
  FAIL() << "the plan has no such step";
}

TEST(Attention, WrongPlansAreRefused) {
  expect_refused<Attend>("content", [](Attend& a) { a.first_token -= 1; });
  expect_refused<Attend>("content", [](Attend& a) { a.q.row -= 1; });
  expect_refused<Attend>("content", [](Attend& a) { std::swap(a.keys, a.values); });
  expect_refused<Attend>("content", [](Attend& a) { a.out.slice.row -= 1; });
  expect_refused<Gemm>("content", [](Gemm& g) { g.a.buffer = 0; });  // Q itself
  expect_refused<Await>("content", [](Await& a) { a.target = 0; });  // adds what has not come yet
}

TEST(Attention, WrongHeadsAreRefused) {
  Problem problem = attention(1, 32, 4, 2, 8);
  Plan plan = plan_sequential(problem, {}).value();
  auto& whole = std::get<Attend>(plan.ranks[0].lanes[0].steps[0]);
  // Heads 2 and 3 with the keys and values of heads 0 and 1.
  whole.grid = make_grid(32, 16, 64, 8);
  whole.q.col = 16;
  whole.q.cols = 16;
  whole.keys.cols = whole.values.cols = 8;
  whole.out.slice.col = 16;
  whole.out.slice.cols = 16;
  const Proof proof = verify(plan);
  EXPECT_FALSE(proof.ok);
  EXPECT_EQ(proof.rule, "content") << proof.failure;
  EXPECT_THAT(proof.failure, ::testing::HasSubstr("keys"));
}

}  // namespace
}  // namespace shingle::attention_test
