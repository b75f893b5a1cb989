#include "shingle/api/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace shingle {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): a counter in, 64 well-mixed bits out.
constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Mean 0, variance 1: four uniform 16-bit numbers summed are near enough to normal.
float bell(std::uint64_t bits) {
  const auto sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) - 131070.0f) * (1.0f / 37837.0f);
}

/// How large sums may get: as far as all integers are values of the type, and for swiglu no further than to
/// where the product of two is a finite f16.
std::int64_t exact_limit(const Problem& problem) {
  const auto limit = static_cast<std::int64_t>(2.0 / epsilon(problem.dtype));
  return problem.epilogue.activation == Activation::swiglu ? smaller(limit, 240) : limit;
}

/// Whether a role's matrix is the same on all ranks: parameters of a summed or routed result, and the
/// residual of a whole one.
bool replicated(const Problem& problem, Role role) {
  if (role == Role::bias || role == Role::norm_weight)
    return problem.reduces() || problem.op == Op::gemm_alltoall;
  return role == Role::residual && problem.op == Op::gemm_allreduce;
}

class RandomInputs : public Inputs {
 public:
  RandomInputs(const Problem& problem, std::uint64_t seed) : Inputs(problem), seed_(seed) {}

 protected:
  /// State of a matrix; the element at index i is made of mixed(state + i · golden).
  std::uint64_t state(int rank, Role role) const {
    const int key = replicated(problem(), role) ? 0 : rank;
    return mixed(seed_ + golden * static_cast<std::uint64_t>(key * 16 + static_cast<int>(role) + 1));
  }
  std::uint64_t first_index(Role role, int rank, std::int64_t row, std::int64_t col) const {
    return static_cast<std::uint64_t>(row * shape_of(problem(), role, rank).cols + col);
  }

 private:
  std::uint64_t seed_;
};

class NormalInputs final : public RandomInputs {
 public:
  using RandomInputs::RandomInputs;

 private:
  void row(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
           float* out) const override {
    const double terms = static_cast<double>(problem().k) * (problem().reduces() ? problem().world : 1);
    const bool weight = role == Role::norm_weight;
    const float scale = role == Role::b ? static_cast<float>(1 / std::sqrt(terms)) : weight ? 0.25f : 1.0f;
    std::uint64_t x = state(rank, role) + first_index(role, rank, row, col) * golden;
    for (std::int64_t i = 0; i < cols; ++i, x += golden)
      out[i] = bell(mixed(x)) * scale + (weight ? 1.0f : 0.0f);
  }
};

/// A row of op(A) has `nonzeros_` entries of up to ±a_, each somewhere in its own stretch of k, and B is
/// dense of up to ±b_: no partial sum of any rank can exceed nonzeros_ · a_ · b_, which with all ranks and a
/// bias stays within the exact limit.
class IntegerInputs final : public RandomInputs {
 public:
  IntegerInputs(const Problem& problem, std::uint64_t seed) : RandomInputs(problem, seed) {
    const std::int64_t ranks = problem.reduces() ? problem.world : 1;
    if (problem.is_collective()) {  // dense: every element goes its own way
      a_ = std::clamp<std::int64_t>(exact_limit(problem) / ranks, 1, 64);
      return;
    }
    const std::int64_t budget = larger((exact_limit(problem) - 2 * addend) / ranks, 1);
    const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(budget / problem.k)));
    a_ = b_ = budget < 4 ? 1 : std::clamp<std::int64_t>(root, 2, 8);
    nonzeros_ = smaller(problem.k, budget / (a_ * b_));
    stretch_ = ceil_div(problem.k, nonzeros_);
  }

  bool exact() const override { return true; }

 private:
  static constexpr std::int64_t addend = 8;  // of a bias or residual

  void row(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
           float* out) const override {
    const std::uint64_t base = state(rank, role);
    if (role == Role::a && !problem().is_collective()) {
      const bool turned = problem().transpose_a;
      for (std::int64_t i = 0; i < cols; ++i)
        out[i] = turned ? entry(base, col + i, row) : entry(base, row, col + i);
      return;
    }
    const std::int64_t limit = role == Role::a             ? a_
                               : role == Role::b           ? b_
                               : role == Role::norm_weight ? 2
                                                           : addend;
    const auto span = static_cast<std::uint64_t>(2 * limit + 1);
    std::uint64_t x = base + first_index(role, rank, row, col) * golden;
    for (std::int64_t i = 0; i < cols; ++i, x += golden)
      out[i] = static_cast<float>(static_cast<std::int64_t>(mixed(x) % span) - limit);
  }

  float entry(std::uint64_t base, std::int64_t i, std::int64_t k) const {
    const auto cell = static_cast<std::uint64_t>(i * nonzeros_ + k / stretch_);
    const std::uint64_t bits = mixed(base + cell * golden);
    if (static_cast<std::int64_t>((bits >> 8) % static_cast<std::uint64_t>(stretch_)) != k % stretch_)
      return 0;
    const auto value = static_cast<float>(1 + bits % 128 % static_cast<std::uint64_t>(a_));
    return bits & 128 ? -value : value;
  }

  std::int64_t a_ = 1, b_ = 1, nonzeros_ = 1, stretch_ = 1;
};

}  // namespace

void Inputs::read(int rank, Role role, const Area& area, double* out) const {
  std::vector<float> values(static_cast<std::size_t>(area.cols));
  std::vector<std::uint16_t> rounded(problem_.dtype == DType::f32 ? 0 : values.size());
  for (std::int64_t r = 0; r < area.rows; ++r, out += area.cols) {
    row(rank, role, area.row + r, area.col, area.cols, values.data());
    if (!rounded.empty()) {
      narrow(problem_.dtype, values.data(), rounded.data(), values.size());
      widen(problem_.dtype, rounded.data(), values.data(), values.size());
    }
    std::copy(values.begin(), values.end(), out);
  }
}

void Inputs::write(int rank, Role role, void* memory) const {
  const Shape shape = shape_of(problem_, role, rank);
  std::vector<float> values(static_cast<std::size_t>(shape.cols));
  auto* to = static_cast<std::byte*>(memory);
  for (std::int64_t r = 0; r < shape.rows; ++r, to += values.size() * size_bytes(problem_.dtype)) {
    row(rank, role, r, 0, shape.cols, values.data());
    narrow(problem_.dtype, values.data(), to, values.size());
  }
}

std::unique_ptr<Inputs> random_inputs(const Problem& problem, std::uint64_t seed, Values values) {
  if (values == Values::integers) return std::make_unique<IntegerInputs>(problem, seed);
  return std::make_unique<NormalInputs>(problem, seed);
}

}  // namespace shingle
