#include "reference.hpp"

#include "attention_reference.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace shingle {
namespace {

// Blocks of B (512×512 doubles: 2 MiB) stay in a core's cache while dgemm runs over the panel's rows.
constexpr std::int64_t block = 512;

double squares(const std::vector<double>& values) {
  return cblas_ddot(static_cast<int>(values.size()), values.data(), 1, values.data(), 1);
}

/// Adds the rows of one term to x. Returns their mean square.
double add_rows(const Inputs& inputs, const Term& term, std::vector<double>& x) {
  const std::int64_t n = inputs.problem().n;
  std::vector<double> a;
  double total = 0;
  std::int64_t done = 0;
  for (const ARows& s : term.sources) {
    a.resize(static_cast<std::size_t>(s.rows * n));
    inputs.read(s.owner, Role::a, {s.row, s.rows, 0, n}, a.data());
    total += squares(a);
    cblas_daxpy(static_cast<int>(a.size()), 1.0, a.data(), 1, x.data() + done * n, 1);
    done += s.rows;
  }
  return total / static_cast<double>(done * n);
}

/// Rows of op(A) times a weight of a rank. The rows are read from their owners, or are `held` (rows × k).
struct Factors {
  int rank;
  std::vector<ARows> sources;
  const double* held;
  Weight weight;
};

/// Adds a product to x (rows × n). Returns the mean square of products of its size with random signs.
double add_product(const Inputs& inputs, const Factors& f, std::vector<double>& x) {
  const Problem& p = inputs.problem();
  const bool turned = p.transpose_a && f.held == nullptr;
  const std::int64_t rows = count_rows(f.sources);
  // Rows of several owners are read one below the other, so that one dgemm multiplies all.
  const std::vector<ARows> runs = turned ? f.sources : std::vector<ARows>{{f.rank, 0, rows}};
  std::vector<double> a, b;
  double a_squares = 0, b_squares = 0;
  for (std::int64_t k = 0; k < f.weight.k; k += block) {
    const std::int64_t ks = smaller(block, f.weight.k - k);
    a.resize(static_cast<std::size_t>(rows * ks));
    std::int64_t done = 0;
    for (const ARows& s : f.sources) {
      const Area area = turned ? Area{k, ks, s.row, s.rows} : Area{s.row, s.rows, k, ks};
      if (f.held == nullptr) inputs.read(s.owner, Role::a, area, a.data() + done * ks);
      for (std::int64_t i = done; i < done + s.rows && f.held != nullptr; ++i)
        std::copy_n(f.held + i * f.weight.k + k, ks, a.data() + i * ks);
      done += s.rows;
    }
    a_squares += squares(a);
    for (std::int64_t col = 0; col < f.weight.n; col += block) {
      const std::int64_t cols = smaller(block, f.weight.n - col);
      b.resize(static_cast<std::size_t>(ks * cols));
      inputs.read(f.rank, f.weight.role, f.weight.block(p, k, ks, col, cols), b.data());
      b_squares += squares(b);
      done = 0;
      for (const ARows& s : runs) {
        cblas_dgemm(
            CblasRowMajor, turned ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
            static_cast<int>(s.rows), static_cast<int>(cols), static_cast<int>(ks), 1.0, a.data() + done * ks,
            static_cast<int>(turned ? s.rows : ks), b.data(), static_cast<int>(p.transpose_b ? ks : cols),
            1.0, x.data() + done * f.weight.n + col, static_cast<int>(f.weight.n));
        done += s.rows;
      }
    }
  }
  const auto size = [](std::int64_t height, std::int64_t width) {
    return static_cast<double>(height) * static_cast<double>(width);
  };
  return a_squares / size(rows, f.weight.k) * (b_squares / size(f.weight.k, f.weight.n)) *
         static_cast<double>(f.weight.k);
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

/// A row vector of a rank.
std::vector<double> read_vector(const Inputs& inputs, int rank, Role role) {
  const std::int64_t cols = shape_of(inputs.problem(), role, rank).cols;
  std::vector<double> values(static_cast<std::size_t>(cols));
  inputs.read(rank, role, {0, 1, 0, cols}, values.data());
  return values;
}

/// out = scale · activation(x + bias). `bias` may be empty. For swiglu x is [gate | up].
void apply(const Epilogue& epilogue, const double* x, const std::vector<double>& bias,
           std::span<double> out) {
  const std::size_t cols = out.size();
  const auto biased = [&](std::size_t i) { return bias.empty() ? x[i] : x[i] + bias[i]; };
  for (std::size_t i = 0; i < cols; ++i) {
    out[i] = activate(epilogue.activation, biased(i)) * static_cast<double>(epilogue.scale);
    if (epilogue.activation == Activation::swiglu) out[i] *= biased(cols + i);
  }
}

/// Adds the product of a term, or its two, to x. Returns the mean square with random signs.
double add_products(const Inputs& inputs, const Term& term, std::vector<double>& x) {
  const Problem& p = inputs.problem();
  if (!p.traits().chains())
    return add_product(inputs, {term.rank, term.sources, nullptr, {Role::b, p.k, p.n, term.weight}}, x);
  std::vector<double> first(static_cast<std::size_t>(count_rows(term.sources) * p.b_cols()));
  add_product(inputs, {term.rank, term.sources, nullptr, {Role::b, p.k, p.b_cols(), term.weight}}, first);
  const std::vector<double> hidden = activated(inputs, term.rank, first);
  return add_product(inputs,
                     {term.rank,
                      {{term.rank, 0, count_rows(term.sources)}},
                      hidden.data(),
                      {Role::down, p.inner, p.n, term.weight}},
                     x);
}

}  // namespace

std::vector<double> activated(const Inputs& inputs, int rank, const std::vector<double>& x) {
  const Problem& p = inputs.problem();
  const std::vector<double> bias =
      p.epilogue.bias ? read_vector(inputs, rank, Role::bias) : std::vector<double>{};
  const std::int64_t rows = std::ssize(x) / p.b_cols();
  std::vector<double> hidden(static_cast<std::size_t>(rows * p.inner));
  for (std::int64_t row = 0; row < rows; ++row)
    apply(p.epilogue, x.data() + row * p.b_cols(), bias,
          std::span(hidden).subspan(static_cast<std::size_t>(row * p.inner),
                                    static_cast<std::size_t>(p.inner)));
  return hidden;
}

double result_size(const Problem& problem, double mean_square) {
  return std::sqrt(mean_square) * std::abs(static_cast<double>(problem.epilogue.scale));
}

Area Weight::block(const Problem& problem, std::int64_t row, std::int64_t rows, std::int64_t col,
                   std::int64_t cols) const {
  return problem.transpose_b ? Area{number * n + col, cols, row, rows}
                             : Area{number * k + row, rows, col, cols};
}

Product multiply(const Inputs& inputs, const Panel& panel, const Term& term) {
  const Problem& p = inputs.problem();
  Product product;
  if (p.traits().shards_tokens()) {
    Attended attended = attend(inputs, term.rank, panel.row, panel.rows);
    product.mean_square = squares(attended.out) / static_cast<double>(attended.out.size());
    product.x = std::move(attended.out), product.lse = std::move(attended.lse);
    return product;
  }
  product.x.resize(static_cast<std::size_t>(count_rows(term.sources) * p.n));
  if (!p.traits().multiplies()) {
    product.mean_square = add_rows(inputs, term, product.x);
  } else if (p.traits().attends) {
    const std::vector<double> attended = attend(inputs, term.rank, term.sources.front().row, panel.rows).out;
    product.mean_square =
        add_product(inputs, {term.rank, term.sources, attended.data(), {Role::b, p.k, p.n}}, product.x);
  } else {
    product.mean_square = add_products(inputs, term, product.x);
  }
  return product;
}

void Product::add(const Problem& problem, const Panel& panel, const Term& term, Product&& other) {
  if (term.to.empty() && x.empty()) {
    *this = std::move(other);
    return;
  }
  const auto n = static_cast<std::size_t>(problem.n);
  x.resize(static_cast<std::size_t>(panel.rows) * n);
  double factors = 0;
  for (std::size_t row = 0; row < other.x.size() / n; ++row) {
    const Term::To to = term.to.empty() ? Term::To{static_cast<std::int64_t>(row)} : term.to[row];
    cblas_daxpy(static_cast<int>(n), to.factor, other.x.data() + row * n, 1, x.data() + to.row * problem.n,
                1);
    factors += to.factor * to.factor;
  }
  mean_square += other.mean_square * factors / static_cast<double>(panel.rows);
}

Finish::Finish(const Inputs& inputs, int rank) : inputs_(inputs), rank_(rank) {
  const Problem& p = inputs.problem();
  if (p.result_epilogue().bias) bias_ = read_vector(inputs, rank, Role::bias);
  if (p.norm.enabled) weight_ = read_vector(inputs, rank, Role::norm_weight);
  result_.out.resize(static_cast<std::size_t>(p.out_cols()));
  if (p.norm.residual) residual_ = result_.sum = result_.out;
}

double Finish::norm_scale() const {
  return std::sqrt(squares(weight_) / static_cast<double>(weight_.size()));
}

const RowResult& Finish::operator()(const double* x, std::int64_t row) {
  const Problem& p = inputs_.problem();
  std::vector<double>& out = result_.out;
  const std::size_t cols = out.size();
  apply(p.result_epilogue(), x, bias_, out);
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
