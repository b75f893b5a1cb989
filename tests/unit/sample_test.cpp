// The oracle's sample against loops that anyone can read, and what it finds.
#include "check/sample.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>

#include "api/workspace.hpp"
#include "naive_reference.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/base/error.hpp"
#include "workload/routing_patterns.hpp"

namespace shingle::sample_test {
namespace {

Problem problem_of(Op op, std::int64_t m, std::int64_t n = 37, std::int64_t k = 41) {
  Problem p{.op = op, .world = 3, .m = m, .n = n, .k = k};
  if (p.traits().routes())
    p.routing = std::make_shared<Routing>(make_routing(RoutingPattern::random, 3, {m, 0, m - 3}, 5));
  if (p.traits().chains()) p.inner = 12;
  if (p.traits().attends) {
    p.attention = {.heads = 12, .kv_heads = 6, .head_dim = 4, .causal = true, .lengths = {m - 77, 77}};
    p.k = p.traits().shards_tokens() ? 48 : 16;
    if (p.traits().shards_tokens()) p.n = p.k;
  }
  return p;
}

std::vector<int> ranks_of(const Problem& p) {
  std::vector<int> ranks(static_cast<std::size_t>(p.world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string test_name(Op op) {
  std::string text(name(op));
  std::ranges::replace_if(text, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return text;
}

/// What the sample says of results computed by definition.
Check judged(const RowSample& sample, const Problem& p, const Naive& naive) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<Output> outputs;
  for (const int rank : ranks_of(p))
    for (const Role role : roles_of(p)) {
      if (!is_output(role)) continue;
      const auto cols = static_cast<std::size_t>(p.out_cols());
      auto& packed = memory.emplace_back(sample.rows(rank).size() * cols * size_bytes(p.dtype) + 1);
      std::size_t i = 0;
      for (const std::int64_t row : sample.rows(rank))
        for (std::size_t col = 0; col < cols; ++col)
          store_element(p.dtype, packed.data(), i++,
                        naive.get(rank, role, row, static_cast<std::int64_t>(col)));
      outputs.push_back({rank, role, packed.data()});
    }
  return sample.check(outputs);
}

class SampleOf : public testing::TestWithParam<Op> {};

TEST_P(SampleOf, AgreesWithLoops) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int variant : {0, 1, 2, 3, 4})
      for (const std::int64_t m : {7, 300}) {
        Problem p = problem_of(GetParam(), m, 38);
        p.dtype = dtype;
        p.transpose_a = variant == 1 && !p.traits().gathers() && !p.traits().chains();
        p.transpose_b = variant >= 2;
        if (variant == 3) p.epilogue = {true, Activation::swiglu};
        p.norm.enabled = p.norm.residual = variant == 4;
        p.validate();
        for (const Values values : {Values::normal, Values::integers}) {
          const auto inputs = random_inputs(p, 7, values);
          const RowSample sample(*inputs, ranks_of(p));
          const Check check = judged(sample, p, Naive(*inputs));
          EXPECT_TRUE(check.passed) << describe(p) << " " << variant << ": " << check.max_error << " > "
                                    << check.tolerance << " at " << check.worst;
        }
      }
}

TEST_P(SampleOf, FindsATileThatIsWrong) {
  const Problem p = problem_of(GetParam(), 640);
  const auto inputs = random_inputs(p, 1);
  const RowSample sample(*inputs, ranks_of(p));
  EXPECT_EQ(sample.apart(), 5);
  Naive naive(*inputs);
  ASSERT_TRUE(judged(sample, p, naive).passed);
  const std::int64_t rows = p.out_rows(2);
  for (std::int64_t row = rows / 2; row < rows / 2 + (p.traits().routes() ? rows / 3 : 9); ++row)
    naive.set(2, Role::out, row, 20, 20 + static_cast<double>(naive.get(2, Role::out, row, 20)));
  const Check check = judged(sample, p, naive);
  EXPECT_FALSE(check.passed);
  EXPECT_THAT(check.worst, testing::StartsWith("out of rank 2, rows "));
}

TEST_P(SampleOf, FindsWhatIsNotFinite) {
  const Problem p = problem_of(GetParam(), 20);
  const auto inputs = random_inputs(p, 1);
  const RowSample sample(*inputs, ranks_of(p));
  Naive naive(*inputs);
  naive.set(0, Role::out, 1, 36, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isinf(judged(sample, p, naive).max_error));
}

INSTANTIATE_TEST_SUITE_P(Ops, SampleOf,
                         testing::Values(Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter,
                                         Op::allgather_gemm, Op::gemm_alltoall, Op::mlp,
                                         Op::gemm_allgather_gemm),
                         [](const auto& parameter) { return test_name(parameter.param); });

TEST(RowSample, HasOneOfSoManyRowsInEachStretch) {
  const Problem p = problem_of(Op::gemm_allreduce, 1000, 8, 8);
  const auto inputs = random_inputs(p, 1);
  const RowSample sample(*inputs, std::vector{1});
  EXPECT_EQ(sample.apart(), 7);
  ASSERT_EQ(sample.rows(1).size(), 143u);
  for (std::size_t i = 0; i < 143; ++i) EXPECT_EQ(sample.rows(1)[i] / 7, static_cast<std::int64_t>(i));
  EXPECT_TRUE(sample.rows(0).empty()) << "not asked for";
}

/// Of rows that are routed, no tile of 128 that a rank gets is without one.
TEST(RowSample, HasRowsOfEachTileThatARankGets) {
  for (const Op op : {Op::gemm_alltoall, Op::alltoall_gemm}) {
    Problem p = problem_of(op, 9000, 4, 4);
    p.world = 2;
    p.routing = std::make_shared<Routing>(make_routing(RoutingPattern::random, 2, {9000, 9000}, 5));
    const auto inputs = random_inputs(p, 1);
    const RowSample sample(*inputs, ranks_of(p));
    EXPECT_EQ(sample.apart(), 64);
    for (const int rank : ranks_of(p)) {
      std::int64_t before = -1;
      for (const std::int64_t row : sample.rows(rank)) {
        EXPECT_LT(row - before, 128) << name(op) << ", rank " << rank;
        before = row;
      }
      EXPECT_LT(p.out_rows(rank) - before, 128);
    }
  }
}

TEST(RowSample, HasAllRowsOfSmallProblemsWhereverTheyAre) {
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_alltoall}) {
    const Problem p = problem_of(op, 40, 8, 8);
    const auto inputs = random_inputs(p, 1);
    const RowSample sample(*inputs, ranks_of(p));
    for (const int rank : ranks_of(p))
      EXPECT_EQ(static_cast<std::int64_t>(sample.rows(rank).size()), p.out_rows(rank)) << name(op);
  }
}

TEST(RowSample, ReadsWhatAWorkspaceHolds) {
  const auto reads = [](const Problem& p) {
    SCOPED_TRACE(describe(p));
    const auto world = make_world(p.world, {.backend = "host"});
    const auto inputs = random_inputs(p, 3);
    Workspace memory(*world, *inputs);
    Operator op_of(*world, p, {.params = SequentialParams{}});
    memory.bind(op_of);
    const RowSample sample(*inputs, world->local_ranks());
    memory.poison_outputs();
    EXPECT_FALSE(memory.check(sample).passed);
    op_of.run();
    EXPECT_TRUE(memory.check(sample).passed);
  };
  for (const Op op :
       {Op::gemm_reducescatter, Op::allgather_gemm, Op::alltoall_gemm, Op::attention_reducescatter,
        Op::ulysses_attention, Op::allgather_attention, Op::attention_backward}) {
    Problem p = problem_of(op, 600, 24, 16);
    reads(p);
    if (op != Op::allgather_attention && op != Op::attention_backward) continue;
    p.row_order = RowOrder::zigzag;
    reads(p);
  }
}

/// Experts with known rows, and with slots whose tokens the device knows.
class SampledExperts : public testing::TestWithParam<std::tuple<Op, bool>> {
 protected:
  static Problem problem() {
    const auto [op, slots] = GetParam();
    Problem p{
        .op = op, .world = 2, .n = 48, .k = 24, .dtype = DType::bf16, .experts = {4, 2, slots ? 200 : 0}};
    p.epilogue.activation = p.traits().takes_tokens() ? Activation::swiglu : Activation::none;
    if (p.traits().chains()) p.inner = 40;
    if (slots) return with_m(p, 300);
    p.m = 300;
    const std::vector<std::int64_t> tokens(static_cast<std::size_t>(p.sources()), p.m);
    p.routing = std::make_shared<const Routing>(make_topk_routing(RoutingPattern::skewed, p.sources(), tokens,
                                                                  p.experts, 3, p.traits().expert_split()));
    return p;
  }
  void run() {
    Operator op(*world, p, {.params = SequentialParams{}});
    memory.bind(op);
    memory.poison_outputs();
    EXPECT_FALSE(memory.check(sample).passed);
    op.run();
  }

  const Problem p = problem();
  const std::unique_ptr<World> world = make_world(p.world, {.backend = "host"});
  /// Where the device knows the experts of tokens, the last rank has fewer tokens, or none.
  std::unique_ptr<Inputs> make_inputs(std::vector<std::int64_t> tokens) const {
    if (!p.has_slots()) return random_inputs(p, 3);
    tokens.resize(static_cast<std::size_t>(p.sources()));
    return random_inputs(
        p, 3, Values::normal,
        std::make_shared<const Routing>(make_topk_routing(RoutingPattern::skewed, p.sources(), tokens,
                                                          p.experts, 3, p.traits().expert_split())));
  }
  const std::unique_ptr<Inputs> inputs = make_inputs({300, 71});
  Workspace memory{*world, *inputs};
  const RowSample sample{*inputs, world->local_ranks()};
};

/// The whole oracle says the same, from panels that are cut otherwise.
TEST_P(SampledExperts, FindWhatTheWholeOracleFinds) {
  EXPECT_EQ(sample.apart(), 2);
  run();
  const Check sampled = memory.check(sample), whole = check(*inputs, memory.outputs());
  EXPECT_TRUE(sampled.passed) << sampled.max_error << " at " << sampled.worst;
  EXPECT_TRUE(whole.passed) << whole.max_error << " at " << whole.worst;
  EXPECT_GT(sampled.max_error, whole.max_error / 4);
  EXPECT_LT(sampled.max_error, 4 * whole.max_error) << "pieces of one row err more than tiles";
  // Each rank by itself has a part of the rows.
  std::size_t rows = 0;
  for (const int rank : ranks_of(p)) {
    const RowSample own(*inputs, std::vector{rank});
    rows += own.rows(rank).size();
    EXPECT_TRUE(own.rows(1 - rank).empty());
  }
  EXPECT_NEAR(static_cast<double>(rows), static_cast<double>(sample.rows(0).size() + sample.rows(1).size()),
              8);
}

/// The last rank has no token: its results are 0, and counts say so.
TEST_P(SampledExperts, KnowRanksWithoutTokens) {
  if (!p.has_slots() || p.sources() == 1) return;
  const std::unique_ptr<Inputs> none = make_inputs({300, 0});
  Workspace empty(*world, *none);
  Operator op(*world, p, {.params = SequentialParams{}});
  empty.bind(op);
  empty.poison_outputs();
  op.run();
  const Check sampled = empty.check(RowSample(*none, world->local_ranks()));
  const Check whole = check(*none, empty.outputs());
  EXPECT_TRUE(sampled.passed) << sampled.max_error << " at " << sampled.worst;
  EXPECT_TRUE(whole.passed) << whole.max_error << " at " << whole.worst;
}

TEST_P(SampledExperts, FindWrongRowsAndCounts) {
  run();
  // A sampled row of rank 0 gets the row before it.
  const int rank = 0;
  const std::int64_t row = sample.rows(rank)[sample.rows(rank).size() / 2];
  const std::int64_t bytes = p.out_cols() * static_cast<std::int64_t>(size_bytes(p.dtype));
  auto* const at = static_cast<std::byte*>(const_cast<void*>(memory.data(rank, Role::out))) + row * bytes;
  const std::vector<std::byte> right(at, at + bytes);
  std::copy_n(at - bytes, bytes, at);
  const Check found = memory.check(sample);
  EXPECT_FALSE(found.passed);
  EXPECT_THAT(found.worst, testing::StartsWith("out of rank 0, rows " + std::to_string(row) + ".."));
  std::ranges::copy(right, at);
  for (const Role role : roles_of(p)) {  // counts are compared whole
    if (role != Role::dropped && role != Role::counts) continue;
    auto* const counts = static_cast<std::int32_t*>(const_cast<void*>(memory.data(rank, role)));
    ++counts[1];
    EXPECT_FALSE(memory.check(sample).passed) << name(role);
    --counts[1];
  }
  EXPECT_TRUE(memory.check(sample).passed);
}

INSTANTIATE_TEST_SUITE_P(
    Ops, SampledExperts,
    testing::Combine(testing::Values(Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::moe,
                                     Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp,
                                     Op::grouped_gemm_allreduce, Op::moe_allreduce),
                     testing::Bool()),
    [](const auto& parameter) {
      return test_name(std::get<Op>(parameter.param)) + (std::get<bool>(parameter.param) ? "_slots" : "");
    });

TEST(RowSample, IsNotOfCollectives) {
  const Problem p = problem_of(Op::allreduce, 30);
  const auto inputs = random_inputs(p, 1);
  EXPECT_FALSE(RowSample::serves(p));
  EXPECT_THROW(RowSample(*inputs, std::vector{0}), Unsupported);
}

}  // namespace
}  // namespace shingle::sample_test
