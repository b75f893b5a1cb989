#include "api/reference.hpp"

#include "api/attention_reference.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace shingle {
namespace {

// Blocks of B (512×512 doubles: 2 MiB) stay in a core's cache while dgemm runs over the rows of the panel.
constexpr std::int64_t block = 512;

/// The owners of global rows [row, row + rows) of a gathered A, in order.
std::vector<ARows> owners(const Problem& problem, std::int64_t row, std::int64_t rows) {
  struct Owned {
    std::int64_t global;
    ARows local;
  };
  std::vector<Owned> found;
  for (int rank = 0; rank < problem.world; ++rank)
    for (const GlobalRun& run : problem.a_runs(rank)) {
      const std::int64_t first = larger(run.global_row, row),
                         end = smaller(run.global_row + run.rows, row + rows);
      if (first < end) found.push_back({first, {rank, run.local_row + first - run.global_row, end - first}});
    }
  std::sort(found.begin(), found.end(), [](const Owned& a, const Owned& b) { return a.global < b.global; });
  std::vector<ARows> in_order;
  for (const Owned& owned : found) in_order.push_back(owned.local);
  return in_order;
}

bool holds(const Problem& problem, int rank, const Panel& panel) {
  for (const GlobalRun& run : problem.out_runs(rank))
    if (run.global_row < panel.row + panel.rows && panel.row < run.global_row + run.rows) return true;
  return false;
}

double squares(const std::vector<double>& values) {
  return cblas_ddot(static_cast<int>(values.size()), values.data(), 1, values.data(), 1);
}

/// Adds op(A) · op(B) of one term (where there is no B: its attention) to x, and returns the mean square that
/// products of its size have with random signs.
double add_term(const Inputs& inputs, const Panel& panel, int term, std::vector<double>& x) {
  const Problem& p = inputs.problem();
  const std::int64_t own_row = panel.row - (p.routing ? p.routing->global_base(term) : 0);
  if (!p.multiplies()) {
    x = attend(inputs, term, panel.row, panel.rows);
    return squares(x) / static_cast<double>(x.size());
  }
  const std::vector<ARows> sources =
      panel.gathered.empty() ? std::vector<ARows>{{term, own_row, panel.rows}} : panel.gathered;
  std::vector<double> a(static_cast<std::size_t>(panel.rows * smaller(block, p.k))), b;
  double a_squares = 0, b_squares = 0;
  const std::vector<double> attended =
      p.attends() ? attend(inputs, term, own_row, panel.rows) : std::vector<double>{};
  for (std::int64_t k = 0; k < p.k; k += block) {
    const std::int64_t ks = smaller(block, p.k - k);
    a.resize(static_cast<std::size_t>(panel.rows * ks));
    std::int64_t done = 0;
    for (const ARows& s : sources) {
      const Area area = p.transpose_a ? Area{k, ks, s.row, s.rows} : Area{s.row, s.rows, k, ks};
      if (attended.empty()) inputs.read(s.owner, Role::a, area, a.data() + done * ks);
      for (std::int64_t i = 0; i < s.rows && !attended.empty(); ++i)
        std::copy_n(attended.data() + i * p.k + k, ks, a.data() + i * ks);
      done += s.rows;
    }
    a_squares += squares(a);
    for (std::int64_t col = 0; col < p.n; col += block) {
      const std::int64_t cols = smaller(block, p.n - col);
      b.resize(static_cast<std::size_t>(ks * cols));
      inputs.read(term, Role::b, p.transpose_b ? Area{col, cols, k, ks} : Area{k, ks, col, cols}, b.data());
      b_squares += squares(b);
      done = 0;
      for (const ARows& s : sources) {
        cblas_dgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans,
                    p.transpose_b ? CblasTrans : CblasNoTrans, static_cast<int>(s.rows),
                    static_cast<int>(cols), static_cast<int>(ks), 1.0, a.data() + done * ks,
                    static_cast<int>(p.transpose_a ? s.rows : ks), b.data(),
                    static_cast<int>(p.transpose_b ? ks : cols), 1.0, x.data() + done * p.n + col,
                    static_cast<int>(p.n));
        done += s.rows;
      }
    }
  }
  const auto size = [](std::int64_t rows, std::int64_t cols) {
    return static_cast<double>(rows) * static_cast<double>(cols);
  };
  return a_squares / size(panel.rows, p.k) * (b_squares / size(p.k, p.n)) * static_cast<double>(p.k);
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case Activation::silu:
    case Activation::swiglu:
      return x / (1 + std::exp(-x));
    case Activation::none:
      break;
  }
  return x;
}

}  // namespace

std::vector<Panel> make_panels(const Problem& problem, std::span<const int> ranks, std::int64_t most_rows) {
  std::vector<Panel> panels;
  const auto cut = [&](std::int64_t row, std::int64_t rows, const std::vector<int>& terms,
                       std::span<const int> readers) {
    for (const std::int64_t end = row + rows; row < end; row += most_rows) {
      Panel panel{row, smaller(most_rows, end - row), terms, {}, {}};
      if (problem.gathers()) panel.gathered = owners(problem, panel.row, panel.rows);
      for (const int rank : readers)
        if (holds(problem, rank, panel)) panel.readers.push_back(rank);
      if (!panel.readers.empty()) panels.push_back(std::move(panel));
    }
  };
  if (problem.reduces()) {
    std::vector<int> all(static_cast<std::size_t>(problem.world));
    for (int rank = 0; rank < problem.world; ++rank) all[static_cast<std::size_t>(rank)] = rank;
    cut(0, problem.m, all, ranks);
  } else if (problem.op == Op::gemm_alltoall) {
    for (int source = 0; source < problem.world; ++source)
      cut(problem.routing->global_base(source), problem.routing->rows(source), {source}, ranks);
  } else {
    for (const int& rank : ranks) cut(0, problem.global_rows(), {rank}, {&rank, 1});
  }
  return panels;
}

Product multiply(const Inputs& inputs, const Panel& panel) {
  Product product;
  product.x.resize(static_cast<std::size_t>(panel.rows * inputs.problem().n));
  double mean_square = 0;
  for (const int term : panel.terms) mean_square += add_term(inputs, panel, term, product.x);
  product.scale = std::sqrt(mean_square);
  return product;
}

Finish::Finish(const Inputs& inputs, int rank) : inputs_(inputs), rank_(rank) {
  const Problem& p = inputs.problem();
  const auto load = [&](Role role, std::vector<double>& values) {
    const std::int64_t cols = shape_of(p, role, rank).cols;
    values.resize(static_cast<std::size_t>(cols));
    inputs.read(rank, role, {0, 1, 0, cols}, values.data());
  };
  if (p.epilogue.bias) load(Role::bias, bias_);
  if (p.norm.enabled) load(Role::norm_weight, weight_);
  result_.out.resize(static_cast<std::size_t>(p.out_cols()));
  if (p.norm.residual) residual_ = result_.sum = result_.out;
}

double Finish::norm_scale() const {
  return std::sqrt(squares(weight_) / static_cast<double>(weight_.size()));
}

const RowResult& Finish::operator()(const double* x, std::int64_t row) {
  const Problem& p = inputs_.problem();
  const Activation activation = p.epilogue.activation;
  std::vector<double>& out = result_.out;
  const std::size_t cols = out.size();
  const auto biased = [&](std::size_t i) { return bias_.empty() ? x[i] : x[i] + bias_[i]; };
  for (std::size_t i = 0; i < cols; ++i) {
    out[i] = activate(activation, biased(i));
    if (activation == Activation::swiglu) out[i] *= biased(cols + i);
  }
  if (!p.norm.enabled) return result_;
  if (p.norm.residual) {
    inputs_.read(rank_, Role::residual, {row, 1, 0, static_cast<std::int64_t>(cols)}, residual_.data());
    for (std::size_t i = 0; i < cols; ++i) result_.sum[i] = out[i] += residual_[i];
  }
  const double mean = squares(out) / static_cast<double>(cols);
  result_.factor = 1 / std::sqrt(mean + static_cast<double>(p.norm.epsilon));
  for (std::size_t i = 0; i < cols; ++i) out[i] *= result_.factor * weight_[i];
  return result_;
}

}  // namespace shingle
