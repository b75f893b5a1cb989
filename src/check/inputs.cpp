#include "inputs.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

namespace shingle {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): maps a counter to 64 well-mixed bits.
constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Mean 0, variance 1. The sum of four uniform 16-bit numbers is close enough to a normal distribution.
float bell(std::uint64_t bits) {
  const auto sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) - 131070.0f) * (1.0f / 37837.0f);
}

/// Max size of exact sums: all integers up to it are values of the type. For swiglu it is also limited so
/// that the product of two is a finite f16.
std::int64_t exact_limit(const Problem& problem) {
  const auto limit = static_cast<std::int64_t>(2.0 / epsilon(problem.dtype));
  return problem.epilogue.activation == Activation::swiglu ? smaller(limit, 240) : limit;
}

/// True if a role's matrix is the same on all ranks. This holds for parameters of a summed or routed result,
/// for the residual of a whole result, and for tokens that all ranks have.
bool replicated(const Problem& problem, Role role) {
  if (role == Role::topk_ids || role == Role::topk_weights) return problem.traits().replicates_tokens();
  if (role == Role::a && problem.traits().takes_tokens()) return problem.traits().replicates_tokens();
  if (problem.traits().chains() &&
      (role == Role::b || role == Role::bias))  // of an mlp: parameters of the rank's inner columns
    return problem.op == Op::gemm_allgather_gemm;
  if (role == Role::bias || role == Role::norm_weight)
    return problem.traits().reduces() || problem.op == Op::gemm_alltoall;
  return role == Role::residual && problem.op == Op::gemm_allreduce;
}

class RandomInputs : public Inputs {
 public:
  RandomInputs(Work work, std::uint64_t seed, std::shared_ptr<const Routing> choices = {})
      : Inputs(std::move(work)), seed_(seed), choices_(std::move(choices)) {}

 protected:
  /// The elements of a row of a matrix of operands.
  virtual void operands(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
                        float* out) const = 0;

  /// State of a matrix; the element at index i is mixed(state + i · golden), mapped to a value.
  std::uint64_t state(int rank, Role role) const {
    const auto* const problem = std::get_if<Problem>(&work());
    const int key = problem && replicated(*problem, role) ? 0 : rank;
    return mixed(seed_ + golden * static_cast<std::uint64_t>(key * 16 + static_cast<int>(role) + 1));
  }
  std::uint64_t first_index(Role role, int rank, std::int64_t row, std::int64_t col) const {
    return static_cast<std::uint64_t>(row * shape_of(work(), role, rank).cols + col);
  }

 private:
  void row(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
           float* out) const final {
    if (role != Role::topk_ids) return operands(rank, role, row, col, cols, out);
    for (std::int64_t i = 0; i < cols; ++i) out[i] = static_cast<float>(chosen(rank, row, col + i));
  }
  /// The expert of a token's choice; -1 for tokens that the rank does not have.
  std::int32_t chosen(int rank, std::int64_t token, std::int64_t choice) const {
    const Experts& experts = problem().experts;
    if (!choices_)
      return static_cast<std::int32_t>(
          mixed(state(rank, Role::topk_ids) + first_index(Role::topk_ids, rank, token, choice) * golden) %
          static_cast<std::uint64_t>(experts.count));
    const int source = problem().source_of(rank);
    const std::int64_t tokens = choices_->rows(source) / experts.topk;
    return token < tokens ? choices_->dest(source, choice * tokens + token) : -1;
  }

  std::uint64_t seed_;
  std::shared_ptr<const Routing> choices_;
};

class NormalInputs final : public RandomInputs {
 public:
  using RandomInputs::RandomInputs;

 private:
  /// Scale that makes products of order one, for operands of order one. If ranks are summed, the sum is of
  /// order one.
  float weight_scale(Role role) const {
    if (const auto* workload = std::get_if<Workload>(&work()))
      return static_cast<float>(1 / std::sqrt(static_cast<double>(workload->k())));
    const Problem& p = problem();
    const bool last = role == Role::down || !p.traits().chains();
    const double terms = static_cast<double>(role == Role::down ? p.inner : p.k);
    return static_cast<float>(1 / std::sqrt(terms * (last && p.traits().reduces() ? p.world : 1)));
  }

  /// Log-sum-exp of as many scores as a query sees keys, of mean 0 and variance 1.
  float lse_of(int rank, std::int64_t row) const {
    const Problem& p = problem();
    for (const GlobalRun& run : p.a_runs(rank))
      if (row >= run.local_row && row < run.local_row + run.rows)
        return std::log(static_cast<float>(p.seen_by(run.global_row + row - run.local_row, 1).count())) +
               0.5f;
    return 0;
  }

  void operands(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
                float* out) const override {
    if (role == Role::lse) {
      const float middle = lse_of(rank, row);
      std::uint64_t x = state(rank, role) + first_index(role, rank, row, col) * golden;
      for (std::int64_t i = 0; i < cols; ++i, x += golden) out[i] = middle + bell(mixed(x)) * 0.25f;
      return;
    }
    const bool weight = role == Role::norm_weight;
    const float scale = role == Role::b || role == Role::down ? weight_scale(role) : weight ? 0.25f : 1.0f;
    std::uint64_t x = state(rank, role) + first_index(role, rank, row, col) * golden;
    for (std::int64_t i = 0; i < cols; ++i, x += golden)
      out[i] = bell(mixed(x)) * scale + (weight ? 1.0f : 0.0f);
  }
};

/// A matrix in which every line along K has `nonzeros` entries of up to ±most, each in a stretch of K of its
/// own.
struct Thin {
  std::int64_t most = 1, nonzeros = 1, stretch = 1;

  float entry(std::uint64_t base, std::int64_t line, std::int64_t k) const {
    const auto cell = static_cast<std::uint64_t>(line * nonzeros + k / stretch);
    const std::uint64_t bits = mixed(base + cell * golden);
    if (static_cast<std::int64_t>((bits >> 8) % static_cast<std::uint64_t>(stretch)) != k % stretch) return 0;
    const auto value = static_cast<float>(1 + bits % 128 % static_cast<std::uint64_t>(most));
    return bits & 128 ? -value : value;
  }
};

/// A thin op(A) and a dense B of up to ±b_. No partial sum of a rank exceeds nonzeros · most · b_. With all
/// ranks and a bias it stays within the exact limit.
///
/// With two products this bounds the first product, which a thin `down` multiplies. The columns of `down`
/// have so few entries that the sums of all ranks also stay exact.
class IntegerInputs final : public RandomInputs {
 public:
  IntegerInputs(const Problem& problem, std::uint64_t seed, std::shared_ptr<const Routing> choices)
      : RandomInputs(problem, seed, std::move(choices)) {
    const std::int64_t ranks = problem.traits().reduces() ? problem.world : 1;
    if (problem.traits().is_collective()) {  // dense, because no element is multiplied
      moved_ = std::clamp<std::int64_t>(exact_limit(problem) / ranks, 1, 64);
      return;
    }
    std::int64_t budget = larger((exact_limit(problem) - 2 * addend_) / ranks, 1);
    if (problem.traits().chains()) {
      const auto inner = static_cast<std::int64_t>(std::sqrt(static_cast<double>(budget)));
      down_ = thin(problem.inner, budget / inner, 1).first;
      bias_ = problem.epilogue.bias ? smaller(addend_, inner / 2) : 0;
      budget = inner - bias_;
    }
    std::tie(a_, b_) = thin(problem.k, budget, 8);
  }

  bool exact() const override { return true; }

 private:
  /// A thin matrix, and the largest element of the other operand, for sums of up to `budget`.
  static std::pair<Thin, std::int64_t> thin(std::int64_t k, std::int64_t budget, std::int64_t most) {
    const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(budget / k)));
    const std::int64_t each = budget < 4 || most == 1 ? 1 : std::clamp<std::int64_t>(root, 2, most);
    const std::int64_t nonzeros = smaller(k, budget / (each * each));
    return {{each, nonzeros, ceil_div(k, nonzeros)}, each};
  }

  void operands(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
                float* out) const override {
    const std::uint64_t base = state(rank, role);
    if ((role == Role::a && !problem().traits().is_collective()) || role == Role::down) {
      const Thin& matrix = role == Role::a ? a_ : down_;
      // Lines along K are the rows of op(A) and the columns of op(down).
      const bool turned = role == Role::a ? problem().transpose_a : !problem().transpose_b;
      for (std::int64_t i = 0; i < cols; ++i)
        out[i] = turned ? matrix.entry(base, col + i, row) : matrix.entry(base, row, col + i);
      return;
    }
    const std::int64_t limit = role == Role::a ? moved_ : largest(role);
    const auto span = static_cast<std::uint64_t>(2 * limit + 1);
    std::uint64_t x = base + first_index(role, rank, row, col) * golden;
    for (std::int64_t i = 0; i < cols; ++i, x += golden)
      out[i] = static_cast<float>(static_cast<std::int64_t>(mixed(x) % span) - limit);
  }

  std::int64_t largest(Role role) const {
    if (role == Role::b) return b_;
    if (role == Role::bias) return bias_;
    return role == Role::norm_weight ? 2 : addend_;
  }

  static constexpr std::int64_t addend_ = 8;  // max of a bias or residual
  Thin a_, down_;
  std::int64_t b_ = 1, bias_ = addend_, moved_ = 1;
};

}  // namespace

void Inputs::read(int rank, Role role, const Area& area, double* out) const {
  std::vector<float> values(static_cast<std::size_t>(area.cols));
  const DType dtype = dtype_of(work_, role);
  std::vector<std::uint16_t> rounded(size_bytes(dtype) == sizeof(float) ? 0 : values.size());
  for (std::int64_t r = 0; r < area.rows; ++r, out += area.cols) {
    row(rank, role, area.row + r, area.col, area.cols, values.data());
    if (!rounded.empty()) {
      narrow(dtype, values.data(), rounded.data(), values.size());
      widen(dtype, rounded.data(), values.data(), values.size());
    }
    std::copy(values.begin(), values.end(), out);
  }
}

void Inputs::write(int rank, Role role, void* memory) const {
  write_rows(rank, role, 0, shape_of(work_, role, rank).rows, memory);
}

void Inputs::write_rows(int rank, Role role, std::int64_t first, std::int64_t rows, void* memory) const {
  const std::int64_t cols = shape_of(work_, role, rank).cols;
  const DType dtype = dtype_of(work_, role);
  std::vector<float> values(static_cast<std::size_t>(cols));
  auto* to = static_cast<std::byte*>(memory);
  for (std::int64_t r = first; r < first + rows; ++r, to += values.size() * size_bytes(dtype)) {
    row(rank, role, r, 0, cols, values.data());
    narrow(dtype, values.data(), to, values.size());
  }
}

std::unique_ptr<Inputs> random_inputs(const Problem& problem, std::uint64_t seed, Values values,
                                      std::shared_ptr<const Routing> choices) {
  if (values == Values::integers && !problem.traits().backward)
    return std::make_unique<IntegerInputs>(problem, seed, std::move(choices));
  return std::make_unique<NormalInputs>(problem, seed, std::move(choices));
}

std::unique_ptr<Inputs> random_inputs(const Workload& workload, std::uint64_t seed) {
  return std::make_unique<NormalInputs>(workload, seed);
}

}  // namespace shingle
