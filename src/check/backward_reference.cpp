#include "backward_reference.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention_reference.hpp"

namespace shingle {
namespace {

// Queries or keys of a sequence that are taken at once against all others.
constexpr std::int64_t tokens_at_once = 256;

std::vector<double> doubles(std::int64_t count) {
  return std::vector<double>(static_cast<std::size_t>(count));
}

/// c[rows×cols] += a · b, or aᵀ · b: `inner` terms.
void add_product_of(bool transpose, std::int64_t rows, std::int64_t cols, std::int64_t inner, const double* a,
                    const double* b, double* c, std::int64_t c_row) {
  const auto size = [](std::int64_t value) { return static_cast<int>(value); };
  cblas_dgemm(CblasRowMajor, transpose ? CblasTrans : CblasNoTrans, CblasNoTrans, size(rows), size(cols),
              size(inner), 1.0, a, size(transpose ? rows : inner), b, size(cols), 1.0, c, size(c_row));
}

/// Some tokens' rows of one head.
struct Rows {
  std::vector<std::int64_t> tokens;
  std::vector<double> elements;  ///< tokens × head_dim
};

/// What one head has of queries: Q, dO, the log-sum-exp, and rowsum(dO ∘ O).
struct HeadQueries {
  Rows q, grad;
  std::vector<double> lse, delta;
};

class HeadGradients {
 public:
  HeadGradients(const Inputs& inputs, std::int64_t head)
      : inputs_(inputs),
        p_(inputs.problem()),
        head_(head),
        kv_head_(head / (p_.attention.heads / p_.attention.kv_heads)),
        dim_(p_.attention.head_dim) {}

  std::int64_t kv_head() const { return kv_head_; }

  HeadQueries queries(std::span<const std::int64_t> tokens) const {
    HeadQueries all{read(Role::a, tokens, head_), read(Role::grad, tokens, head_), {}, {}};
    const Rows attended = read(Role::attended, tokens, head_);
    all.lse = doubles(std::ssize(tokens));
    read_token_rows(inputs_, 0, Role::lse, tokens, head_, 1, all.lse.data());
    for (std::int64_t i = 0; i < std::ssize(tokens); ++i)
      all.delta.push_back(cblas_ddot(static_cast<int>(dim_), all.grad.elements.data() + i * dim_, 1,
                                     attended.elements.data() + i * dim_, 1));
    return all;
  }
  Rows keys(std::span<const std::int64_t> tokens) const { return read(Role::keys, tokens, kv_head_); }
  Rows values(std::span<const std::int64_t> tokens) const { return read(Role::values, tokens, kv_head_); }

  /// P and dS / sqrt(d) of some queries (rows) and keys (columns).
  struct Weights {
    std::vector<double> p, ds;
  };
  Weights weights(const HeadQueries& queries, const Rows& keys, const Rows& values) const {
    const std::int64_t rows = std::ssize(queries.q.tokens), cols = std::ssize(keys.tokens);
    const double factor = 1 / std::sqrt(static_cast<double>(dim_));
    Weights w{doubles(rows * cols), doubles(rows * cols)};
    const auto against = [&](const Rows& left, const Rows& right, std::vector<double>& to) {
      cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows), static_cast<int>(cols),
                  static_cast<int>(dim_), 1.0, left.elements.data(), static_cast<int>(dim_),
                  right.elements.data(), static_cast<int>(dim_), 0.0, to.data(), static_cast<int>(cols));
    };
    against(queries.q, keys, w.p);
    against(queries.grad, values, w.ds);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) {
        const auto row = static_cast<std::size_t>(i), at = static_cast<std::size_t>(i * cols + j);
        const bool seen =
            !p_.attention.causal || keys.tokens[static_cast<std::size_t>(j)] <= queries.q.tokens[row];
        w.p[at] = seen ? std::exp(w.p[at] * factor - queries.lse[row]) : 0;
        w.ds[at] = w.p[at] * (w.ds[at] - queries.delta[row]) * factor;
      }
    return w;
  }

 private:
  Rows read(Role role, std::span<const std::int64_t> tokens, std::int64_t head) const {
    Rows rows{{tokens.begin(), tokens.end()}, doubles(std::ssize(tokens) * dim_)};
    read_token_rows(inputs_, 0, role, tokens, head * dim_, dim_, rows.elements.data());
    return rows;
  }

  const Inputs& inputs_;
  const Problem& p_;
  std::int64_t head_, kv_head_, dim_;
};

/// Adds the gradients of tokens of one sequence, by all tokens of the sequence. `out` has the rows of
/// `these`, and all columns of the role.
void add_gradients(const Inputs& inputs, Role role, std::span<const std::int64_t> these,
                   const TokenRange& sequence, std::int64_t cols, double* out) {
  const Problem& p = inputs.problem();
  const std::int64_t dim = p.attention.head_dim, count = std::ssize(these);
  std::vector<std::int64_t> others;
  for (std::int64_t head = 0; head < p.attention.heads; ++head) {
    const HeadGradients of(inputs, head);
    const bool of_queries = role == Role::out;
    const HeadQueries own = of_queries ? of.queries(these) : HeadQueries{};
    const Rows keys = of_queries ? Rows{} : of.keys(these), values = of_queries ? Rows{} : of.values(these);
    double* const to = out + (of_queries ? head : of.kv_head()) * dim;
    for (std::int64_t first = sequence.first; first < sequence.end; first += tokens_at_once) {
      others.resize(static_cast<std::size_t>(smaller(tokens_at_once, sequence.end - first)));
      std::iota(others.begin(), others.end(), first);
      const std::int64_t terms = std::ssize(others);
      if (of_queries) {
        const Rows k = of.keys(others), v = of.values(others);
        add_product_of(false, count, dim, terms, of.weights(own, k, v).ds.data(), k.elements.data(), to,
                       cols);
      } else {
        const HeadQueries queries = of.queries(others);
        const auto weights = of.weights(queries, keys, values);
        const bool by_scores = role == Role::keys_grad;
        add_product_of(true, count, dim, terms, by_scores ? weights.ds.data() : weights.p.data(),
                       by_scores ? queries.q.elements.data() : queries.grad.elements.data(), to, cols);
      }
    }
  }
}

}  // namespace

std::vector<double> gradient(const Inputs& inputs, Role role, std::span<const std::int64_t> tokens) {
  const Problem& p = inputs.problem();
  const std::int64_t cols = shape_of(p, role, 0).cols;
  std::vector<double> out = doubles(std::ssize(tokens) * cols);
  for (std::size_t row = 0; row < tokens.size();) {
    const TokenRange sequence = p.sequence_of(tokens[row]);
    std::size_t end = row;
    while (end < tokens.size() && tokens[end] < sequence.end &&
           end - row < static_cast<std::size_t>(tokens_at_once))
      ++end;
    add_gradients(inputs, role, tokens.subspan(row, end - row), sequence, cols,
                  out.data() + static_cast<std::int64_t>(row) * cols);
    row = end;
  }
  return out;
}

std::vector<double> gradient(const Inputs& inputs, Role role, std::int64_t first, std::int64_t rows) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(rows));
  std::iota(tokens.begin(), tokens.end(), first);
  return gradient(inputs, role, tokens);
}

std::int64_t gradient_bytes(const Problem& problem, std::int64_t rows) {
  const std::int64_t dim = problem.attention.head_dim;
  return static_cast<std::int64_t>(sizeof(double)) *
         (rows * (problem.k + 1) + tokens_at_once * (2 * tokens_at_once + 6 * (dim + 2)));
}

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace shingle
