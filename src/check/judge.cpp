#include "judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "slots.hpp"

namespace shingle {

/// Sums of squares over one tile.
struct Judge::Squares {
  double error = 0;
  double reference = 0;
};

bool rounds(const Problem& problem, Role role) {
  const Activation activation = problem.epilogue.activation;
  int exponent = 0;
  const bool halves = std::abs(std::frexp(problem.epilogue.scale, &exponent)) == 0.5f;  // a power of two
  return !halves || problem.traits().attends || problem.traits().combines() ||
         (activation != Activation::none && activation != Activation::relu) ||
         (role == Role::out && problem.norm.enabled);
}

bool is_number(Role role) {
  return role == Role::dropped || role == Role::counts;
}

void compare_numbers(const Inputs& inputs, const Output& output, Check& check) {
  const std::vector<std::int32_t> wanted = wanted_numbers(inputs, output.role, output.rank);
  const auto* const got = static_cast<const std::int32_t*>(output.memory);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (got[i] == wanted[i]) continue;
    check.passed = false;
    check.max_error = std::numeric_limits<double>::infinity();
    check.worst = fmt::format("{} of rank {}, element {}: {} instead of {}", name(output.role), output.rank,
                              i, got[i], wanted[i]);
    return;
  }
}

void Judge::compare(const GotRows& of, Finish& finish, const double* x, double scale) {
  const Problem& p = inputs_.problem();
  const std::int64_t cols = p.out_cols();
  std::vector<float> got(static_cast<std::size_t>(cols));
  std::vector<Squares> tiles(static_cast<std::size_t>(ceil_div(cols, judged_tile)));
  const bool normalised = of.role == Role::out && p.norm.enabled;
  const double size = p.result_epilogue().activation == Activation::swiglu ? scale * scale : scale;
  const double weight = normalised ? finish.norm_scale() : 1;
  double least = 0;  // sum over rows of the square of the min size that errors are relative to
  for (std::int64_t i = 0; i < of.rows; ++i) {
    const RowResult& result = finish(x + i * p.n, of.row + i);
    const std::vector<double>& reference = of.role == Role::sum ? result.sum : result.out;
    const DType type = dtype_of(p, of.role);
    const std::size_t offset = static_cast<std::size_t>(i * cols) * size_bytes(type);
    widen(type, static_cast<const std::byte*>(of.elements) + offset, got.data(), got.size());
    // A norm scales a row and its error by the same factor, which is large for rows of small elements.
    const double row_size = normalised ? weight * std::max(1.0, size * result.factor) : size;
    least += row_size * row_size;
    for (std::size_t j = 0; j < got.size(); ++j) {
      const double error = static_cast<double>(got[j]) - reference[j];
      Squares& sums = tiles[j / static_cast<std::size_t>(judged_tile)];
      sums.error += error * error;
      sums.reference += reference[j] * reference[j];
    }
  }
  for (std::int64_t t = 0; t < static_cast<std::int64_t>(tiles.size()); ++t) {
    const std::int64_t width = smaller(judged_tile, cols - t * judged_tile);
    judge(of, t * judged_tile, width, tiles[static_cast<std::size_t>(t)],
          std::sqrt(least * static_cast<double>(width)));
  }
}

void Judge::compare(const GotRows& of, const double* wanted, double scale) {
  const Problem& p = inputs_.problem();
  const std::int64_t cols = shape_of(p, of.role, of.rank).cols;
  std::vector<float> got(static_cast<std::size_t>(of.rows * cols));
  widen(dtype_of(p, of.role), of.elements, got.data(), got.size());
  for (std::int64_t col = 0; col < cols; col += judged_tile) {
    const std::int64_t width = smaller(judged_tile, cols - col);
    Squares sums;
    for (std::int64_t i = 0; i < of.rows; ++i)
      for (std::int64_t j = i * cols + col; j < i * cols + col + width; ++j) {
        const double error = static_cast<double>(got[static_cast<std::size_t>(j)]) - wanted[j];
        sums.error += error * error;
        sums.reference += wanted[j] * wanted[j];
      }
    judge(of, col, width, sums, scale * std::sqrt(static_cast<double>(of.rows * width)));
  }
}

void Judge::merge_into(Check& check) const {
  check.passed = check.passed && passed_;
  if (!(worst_ > check.max_error)) return;
  check.max_error = worst_;
  check.worst = where_;
}

void Judge::judge(const GotRows& of, std::int64_t col, std::int64_t cols, const Squares& sums, double least) {
  double error = 0;
  if (!std::isfinite(sums.error)) {
    error = std::numeric_limits<double>::infinity();
  } else if (sums.error > 0) {
    error = std::sqrt(sums.error) /
            std::max(std::sqrt(sums.reference), least);  // x/0 is infinite, which fails as intended
  }
  if (of.role == Role::out_lse) error *= tolerance(inputs_.problem()) / lse_tolerance(inputs_.problem());
  const double bound =
      inputs_.exact() && !rounds(inputs_.problem(), of.role) ? 0 : tolerance(inputs_.problem());
  passed_ = passed_ && error <= bound;
  if (!(error > worst_)) return;
  worst_ = error;
  where_ = fmt::format("{} of rank {}, rows {}..{}, columns {}..{}", name(of.role), of.rank, of.row,
                       of.row + of.rows - 1, col, col + cols - 1);
}

}  // namespace shingle
