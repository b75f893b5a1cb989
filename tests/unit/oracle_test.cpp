// The oracle against loops that anyone can read.
#include "check/oracle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/reference.hpp"
#include "check/sample.hpp"
#include "naive_reference.hpp"

namespace shingle::oracle_test {
namespace {

Problem problem_of(Op op, int world, std::int64_t m, std::int64_t n, std::int64_t k) {
  Problem p;
  p.op = op;
  p.world = world;
  p.m = m;
  p.n = n;
  p.k = k;
  if (p.traits().chains()) p.inner = 45;
  if (op != Op::gemm_alltoall) return p;
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
  for (int s = 0; s < world; ++s)
    for (std::int64_t row = 0; row < (s == 1 ? 0 : m - s); ++row)
      dest[static_cast<std::size_t>(s)].push_back(static_cast<std::int32_t>((row * 7 + s) % world));
  p.routing = std::make_shared<Routing>(std::move(dest));
  return p;
}

class EveryOp : public testing::TestWithParam<Op> {
 protected:
  static void expect_agreement(const Problem& problem) {
    problem.validate();
    for (const Values values : {Values::normal, Values::integers}) {
      const auto inputs = random_inputs(problem, 7, values);
      const Check check = Naive(*inputs).check();
      EXPECT_TRUE(check.passed) << describe(problem) << ": " << check.max_error << " > " << check.tolerance
                                << " at " << check.worst;
    }
  }
};

TEST_P(EveryOp, AgreesWithLoops) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int transposes : {0, 1, 2, 3}) {
      Problem p = problem_of(GetParam(), 3, 70, 37, 41);
      p.dtype = dtype;
      p.transpose_a = transposes & 1;
      if (p.traits().chains() && p.transpose_a) continue;
      p.transpose_b = transposes & 2;
      expect_agreement(p);
    }
}

TEST_P(EveryOp, AgreesWithLoopsOnEpilogues) {
  for (const auto activation :
       {Activation::none, Activation::relu, Activation::gelu, Activation::silu, Activation::swiglu})
    for (const bool norm : {false, true}) {
      Problem p = problem_of(GetParam(), 2, 33, 66, 17);
      p.epilogue = {true, activation};
      p.norm.enabled = p.norm.residual = norm;
      expect_agreement(p);
    }
}

TEST_P(EveryOp, AgreesWithLoopsWhereProductsTakeSeveralBlocks) {
  expect_agreement(problem_of(GetParam(), 2, 8, 530, 1030));
}

TEST_P(EveryOp, FindsOneWrongElement) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem p = problem_of(GetParam(), 3, 130, 140, 64);
    p.dtype = dtype;
    const auto inputs = random_inputs(p, 1);
    Naive naive(*inputs);
    const double right = static_cast<double>(naive.get(2, Role::out, 3, 139));
    naive.set(2, Role::out, 3, 139, right + 20);
    const Check check = naive.check();
    EXPECT_FALSE(check.passed);
    EXPECT_THAT(check.worst, testing::MatchesRegex("out of rank 2, rows .*, columns 128..139"));
    naive.set(2, Role::out, 3, 139, std::numeric_limits<double>::quiet_NaN());
    EXPECT_FALSE(naive.check().passed);
    EXPECT_TRUE(std::isinf(naive.check().max_error));
  }
}

TEST_P(EveryOp, WantsIntegersExactly) {
  Problem p = problem_of(GetParam(), 2, 64, 64, 512);
  const auto inputs = random_inputs(p, 1, Values::integers);
  Naive naive(*inputs);
  EXPECT_EQ(naive.check().tolerance, 0);
  const double right = static_cast<double>(naive.get(0, Role::out, 1, 1));
  naive.set(0, Role::out, 1, 1, right + (right == 0 ? 1e-30 : right * 1e-7));
  EXPECT_FALSE(naive.check().passed);
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryOp,
                         testing::Values(Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter,
                                         Op::allgather_gemm, Op::gemm_alltoall, Op::mlp,
                                         Op::gemm_allgather_gemm),
                         [](const auto& parameter) {
                           std::string text(name(parameter.param));
                           std::replace(text.begin(), text.end(), '+', '_');
                           return text;
                         });

TEST(Oracle, KnowsRowsThatAreDealtInBlocks) {
  for (const Op op : {Op::gemm_reducescatter, Op::allgather_gemm}) {
    Problem p = problem_of(op, 3, 50, 20, 9);
    p.row_order = RowOrder::block_cyclic;
    p.row_block = 4;
    const auto inputs = random_inputs(p, 3, Values::integers);
    EXPECT_TRUE(Naive(*inputs).check().passed);
  }
}

TEST(Oracle, AttendsOnceForEveryToken) {
  Problem p = problem_of(Op::ulysses_attention, 3, 50, 24, 24);
  p.attention = {.heads = 6, .kv_heads = 3, .head_dim = 4};
  Problem zigzag = p;
  zigzag.op = Op::allgather_attention, zigzag.row_order = RowOrder::zigzag;
  for (const Problem& problem : {p, zigzag}) {
    problem.validate();
    std::vector<int> times(50);
    for (const Panel& panel : make_panels(problem, std::vector{0, 1, 2}, 16)) {
      EXPECT_EQ(panel.ranks, panel.readers);
      for (std::int64_t row = panel.row; row < panel.row + panel.rows; ++row)
        ++times[static_cast<std::size_t>(row)];
    }
    EXPECT_THAT(times, testing::Each(1));
  }
}

/// Rows of all ranks' inputs, by token.
std::vector<std::vector<double>> tokens_of(const Inputs& inputs, Role role) {
  const Problem& p = inputs.problem();
  std::vector<std::vector<double>> tokens(static_cast<std::size_t>(p.m));
  for (int rank = 0; rank < p.world; ++rank)
    for (const GlobalRun& run : p.a_runs(rank))
      for (std::int64_t i = 0; i < run.rows; ++i) {
        auto& row = tokens[static_cast<std::size_t>(run.global_row + i)];
        row.resize(static_cast<std::size_t>(shape_of(p, role, rank).cols));
        inputs.read(rank, role, {run.local_row + i, 1, 0, static_cast<std::int64_t>(row.size())}, row.data());
      }
  return tokens;
}

TEST(Oracle, AttendsToTheTokensOfAllRanks) {
  for (const RowOrder order : {RowOrder::contiguous, RowOrder::zigzag}) {
    Problem p = problem_of(Op::allgather_attention, 3, 25, 8, 8);
    p.attention = {.heads = 4, .kv_heads = 2, .head_dim = 2, .causal = true, .lengths = {15, 10}};
    p.row_order = order;
    p.attention.returns_lse = true;
    p.validate();
    const auto inputs = random_inputs(p, 3);
    const RowSample sample(*inputs, std::vector{0, 1, 2});
    const auto q = tokens_of(*inputs, Role::a), k = tokens_of(*inputs, Role::keys),
               v = tokens_of(*inputs, Role::values);
    for (int rank = 0; rank < p.world; ++rank) {
      std::vector<float> out, lse;
      for (const GlobalRun& run : p.out_runs(rank))
        for (std::size_t row = 0; row < static_cast<std::size_t>(run.rows); ++row) {
          const std::size_t token = static_cast<std::size_t>(run.global_row) + row;
          for (std::size_t col = 0; col < 8; ++col) {
            const std::size_t head = col / 2, kv = head / 2 * 2;
            double sum = 0, weighted = 0;
            for (std::size_t key = token < 15 ? 0 : 15; key <= token; ++key) {
              const double score =
                  (q[token][2 * head] * k[key][kv] + q[token][2 * head + 1] * k[key][kv + 1]) /
                  std::sqrt(2.0);
              sum += std::exp(score);
              weighted += std::exp(score) * v[key][kv + col % 2];
            }
            out.push_back(static_cast<float>(weighted / sum));
            if (col % 2 == 0) lse.push_back(static_cast<float>(std::log(sum)));
          }
        }
      const std::vector<Output> outputs{{rank, Role::out, out.data()}, {rank, Role::out_lse, lse.data()}};
      const auto judged = [&] { return check(*inputs, outputs); };
      EXPECT_TRUE(judged().passed) << judged().max_error;
      EXPECT_EQ(std::ssize(sample.rows(rank)), p.out_rows(rank));
      EXPECT_TRUE(sample.check(outputs).passed);
      for (std::vector<float>* const elements : {&out, &lse}) {
        elements->back() += 0.01f;
        EXPECT_FALSE(judged().passed);
        EXPECT_GT(judged().max_error, judged().tolerance);
        EXPECT_FALSE(sample.check(outputs).passed);
        elements->back() -= 0.01f;
      }
    }
  }
}

TEST(Oracle, JudgesASingleElementNearZeroBySizeOfItsTerms) {
  // Whatever the seed, one element of a sum may cancel; rounding of its terms must not count as an error of
  // the sum.
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Problem p = problem_of(Op::gemm, 1, 1, 1, 4096);
    const auto inputs = random_inputs(p, seed);
    float sum = 0;
    std::vector<double> a(4096), b(4096);
    inputs->read(0, Role::a, {0, 1, 0, 4096}, a.data());
    inputs->read(0, Role::b, {0, 4096, 0, 1}, b.data());
    for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<float>(a[i]) * static_cast<float>(b[i]);
    const Output out{0, Role::out, &sum};
    EXPECT_TRUE(check(*inputs, {&out, 1}).passed) << seed;
  }
}

TEST(Inputs, AreOfOrderOneAndDifferByRankRoleAndSeed) {
  const Problem p = problem_of(Op::gemm_allreduce, 4, 64, 64, 256);
  const auto first_of = [&](std::uint64_t seed, int rank, Role role) {
    double value = 0;
    random_inputs(p, seed)->read(rank, role, {0, 1, 0, 1}, &value);
    return value;
  };
  EXPECT_NE(first_of(0, 0, Role::a), first_of(0, 1, Role::a));
  EXPECT_NE(first_of(0, 0, Role::a), first_of(1, 0, Role::a));
  EXPECT_EQ(first_of(5, 2, Role::b), first_of(5, 2, Role::b));
  const auto inputs = random_inputs(p, 0);
  Naive naive(*inputs);
  double squares = 0;
  for (std::int64_t i = 0; i < 64; ++i)
    for (std::int64_t j = 0; j < 64; ++j)
      squares += std::pow(static_cast<double>(naive.get(1, Role::out, i, j)), 2);
  EXPECT_NEAR(squares / 4096, 1, 0.15);
}

TEST(Inputs, IntegersStayWithinWhatTheDtypeHolds) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int world : {1, 6, 64}) {
      Problem p = problem_of(Op::gemm_allreduce, world, 8, 8, 3000);
      p.dtype = dtype;
      const auto inputs = random_inputs(p, 11, Values::integers);
      const auto k = static_cast<std::size_t>(p.k);
      std::vector<double> a(8 * k), b(8 * k);
      double most = 0;
      bool any = false;
      for (std::size_t i = 0; i < 8; ++i) {
        double bound = 0;  // of a whole row of the sum: |A| · the largest |B| there can be
        for (int rank = 0; rank < world; ++rank) {
          inputs->read(rank, Role::a, {0, 8, 0, p.k}, a.data());
          inputs->read(rank, Role::b, {0, p.k, 0, 8}, b.data());
          double row = 0, largest = 0;
          for (std::size_t j = 0; j < k; ++j) row += std::abs(a[i * k + j]);
          for (const double value : b) largest = std::max(largest, std::abs(value));
          bound += row * largest;
          any = any || row > 0;
        }
        most = std::max(most, bound);
      }
      EXPECT_TRUE(any);
      EXPECT_LE(most, 2 / epsilon(dtype)) << name(dtype) << " on " << world;
    }
}

TEST(Inputs, IntegersOfAnMlpStayWithinWhatTheDtypeHoldsInBothProducts) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int world : {1, 6, 64})
      for (const bool bias : {false, true}) {
        Problem p = problem_of(Op::mlp, world, 64, 8, 300);
        p.inner = 50;
        p.dtype = dtype;
        p.epilogue.bias = bias;
        const auto inputs = random_inputs(p, 11, Values::integers);
        const auto largest = [&](Role role, int rank) {
          const Shape shape = shape_of(p, role, rank);
          std::vector<double> values(static_cast<std::size_t>(shape.elements()));
          inputs->read(rank, role, {0, shape.rows, 0, shape.cols}, values.data());
          return std::pair(
              values, std::abs(*std::ranges::max_element(values, {}, [](double v) { return std::abs(v); })));
        };
        const auto a = largest(Role::a, 0).first;
        double row = 0, most = 0;  // of |A|, and of the sum of all ranks
        for (std::size_t j = 0; j < 300; ++j) row += std::abs(a[j]);
        bool any = false;
        for (int rank = 0; rank < world; ++rank) {
          const double hidden =
              row * largest(Role::b, rank).second + (bias ? largest(Role::bias, rank).second : 0);
          const auto down = largest(Role::down, rank).first;
          double worst = 0;
          for (std::size_t col = 0; col < 8; ++col) {
            double sum = 0;
            for (std::size_t j = 0; j < 50; ++j) sum += std::abs(down[j * 8 + col]);
            worst = std::max(worst, sum);
          }
          EXPECT_LE(hidden, 2 / epsilon(dtype));
          any = any || hidden * worst > 0;
          most += hidden * worst;
        }
        EXPECT_TRUE(any);
        EXPECT_LE(most, 2 / epsilon(dtype)) << name(dtype) << " on " << world;
      }
}

}  // namespace
}  // namespace shingle::oracle_test
