// The reference of the gradients of attention against differences of the attention itself.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "check/backward_reference.hpp"
#include "check/oracle.hpp"
#include "check/sample.hpp"
#include "support/ring_attention.hpp"

namespace shingle::gradient_test {
namespace {

using Tokens = std::vector<std::vector<double>>;  // by token, by column

/// Inputs that a forward has made: the result and the log-sum-exp are those of Q, K and V.
class AttendedInputs final : public Inputs {
 public:
  explicit AttendedInputs(const Problem& problem) : Inputs(problem) {
    const auto random = random_inputs(problem, 5);
    for (const Role role : {Role::a, Role::keys, Role::values, Role::grad}) {
      Tokens& rows = tokens_[role];
      rows.resize(static_cast<std::size_t>(problem.m));
      for (int rank = 0; rank < problem.world; ++rank)
        for (const GlobalRun& run : problem.a_runs(rank))
          for (std::int64_t i = 0; i < run.rows; ++i) {
            auto& row = rows[static_cast<std::size_t>(run.global_row + i)];
            row.resize(static_cast<std::size_t>(shape_of(problem, role, rank).cols));
            random->read(rank, role, {run.local_row + i, 1, 0, std::ssize(row)}, row.data());
          }
    }
    attend();
  }

  Tokens& tokens(Role role) { return tokens_[role]; }

  /// Recomputes the result. Returns Σ dO ∘ O.
  double attend() {
    const Problem& p = problem();
    const std::int64_t dim = p.attention.head_dim, sharing = p.attention.heads / p.attention.kv_heads;
    Tokens &out = tokens_[Role::attended], &lse = tokens_[Role::lse];
    out.assign(static_cast<std::size_t>(p.m), std::vector<double>(static_cast<std::size_t>(p.k)));
    lse.assign(static_cast<std::size_t>(p.m),
               std::vector<double>(static_cast<std::size_t>(p.attention.heads)));
    double sum = 0;
    for (std::int64_t token = 0; token < p.m; ++token)
      for (std::int64_t head = 0; head < p.attention.heads; ++head) {
        const auto at = [&](Role role, std::int64_t of, std::int64_t col) -> double& {
          return tokens_[role][static_cast<std::size_t>(of)][static_cast<std::size_t>(col)];
        };
        const TokenRange seen = p.seen_by(token, 1);
        double weights = 0;
        for (std::int64_t key = seen.first; key < seen.end; ++key) {
          double score = 0;
          for (std::int64_t d = 0; d < dim; ++d)
            score += at(Role::a, token, head * dim + d) * at(Role::keys, key, head / sharing * dim + d);
          const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
          weights += weight;
          for (std::int64_t d = 0; d < dim; ++d)
            at(Role::attended, token, head * dim + d) +=
                weight * at(Role::values, key, head / sharing * dim + d);
        }
        at(Role::lse, token, head) = std::log(weights);
        for (std::int64_t d = 0; d < dim; ++d) {
          double& result = at(Role::attended, token, head * dim + d);
          result /= weights;
          sum += result * at(Role::grad, token, head * dim + d);
        }
      }
    return sum;
  }

 private:
  void row(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
           float* out) const override {
    for (const GlobalRun& run : problem().a_runs(rank))
      if (row >= run.local_row && row < run.local_row + run.rows)
        for (std::int64_t i = 0; i < cols; ++i)
          out[i] = static_cast<float>(tokens_.at(role)[static_cast<std::size_t>(
              run.global_row + row - run.local_row)][static_cast<std::size_t>(col + i)]);
  }

  std::map<Role, Tokens> tokens_;
};

Problem small(bool causal) {
  Problem p = test::attention_backward(2, 7, {4, 2, 2, causal, {4, 3}}, test::zigzag);
  p.validate();
  return p;
}

TEST(Gradients, AreSlopesOfTheAttention) {
  for (const bool causal : {false, true}) {
    AttendedInputs inputs(small(causal));
    for (const auto& [role, of] : {std::pair{Role::out, Role::a}, std::pair{Role::keys_grad, Role::keys},
                                   std::pair{Role::values_grad, Role::values}}) {
      const std::vector<double> gradients = gradient(inputs, role, 0, 7);
      const std::size_t cols = gradients.size() / 7;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        constexpr double step = 1e-4;
        double& element = inputs.tokens(of)[i / cols][i % cols];
        const double before = element;
        element = before + step;
        const double above = inputs.attend();
        element = before - step;
        const double below = inputs.attend();
        element = before;
        inputs.attend();
        EXPECT_NEAR(gradients[i], (above - below) / (2 * step), 1e-5) << name(role) << " " << i;
      }
    }
  }
}

TEST(Gradients, OfEveryOutputAreJudged) {
  const AttendedInputs inputs(small(true));
  const Problem& p = inputs.problem();
  const RowSample sample(inputs, std::vector{0, 1});
  for (int rank = 0; rank < p.world; ++rank)
    for (const Role role : {Role::out, Role::keys_grad, Role::values_grad}) {
      std::vector<float> out;
      for (const GlobalRun& run : p.out_runs(rank))
        for (const double value : gradient(inputs, role, run.global_row, run.rows))
          out.push_back(static_cast<float>(value));
      const Output output{rank, role, out.data()};
      EXPECT_TRUE(check(inputs, {&output, 1}).passed);
      EXPECT_EQ(std::ssize(sample.rows(rank)), p.out_rows(rank));
      EXPECT_TRUE(sample.check({&output, 1}).passed);
      out.back() += 0.01f;
      EXPECT_FALSE(check(inputs, {&output, 1}).passed) << name(role);
      EXPECT_FALSE(sample.check({&output, 1}).passed) << name(role);
    }
}

}  // namespace
}  // namespace shingle::gradient_test
