#include "attention_reference.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace shingle {
namespace {

// Queries of a sequence that are scored at once: scores of all queries would grow with the square of the
// sequence.
constexpr std::int64_t queries_at_once = 256;

/// Softmax of scores / sqrt(d) over the keys that the query sees; the other weights are 0. Returns the
/// log-sum-exp.
double softmax(double* scores, std::int64_t count, std::int64_t visible, double factor) {
  const double most = *std::max_element(scores, scores + visible);
  double sum = 0;
  for (std::int64_t j = 0; j < visible; ++j) sum += scores[j] = std::exp((scores[j] - most) * factor);
  for (std::int64_t j = 0; j < visible; ++j) scores[j] /= sum;
  std::fill(scores + visible, scores + count, 0.0);
  return most * factor + std::log(sum);
}

std::int64_t longest_sequence(const Problem& p) {
  const auto& lengths = p.attention.lengths;
  return lengths.empty() ? p.m : *std::max_element(lengths.begin(), lengths.end());
}

/// Tokens [first, first + rows) of Q, K or V, from the ranks that hold them.
void read_tokens(const Inputs& inputs, int rank, Role role, Area area, double* out) {
  const Problem& p = inputs.problem();
  if (!p.traits().shards_tokens()) return inputs.read(rank, role, area, out);
  const TokenRange wanted{area.row, area.row + area.rows};
  for (int owner = 0; owner < p.world; ++owner)
    for (const GlobalRun& run : p.a_runs(owner)) {
      const TokenRange held = common(wanted, {run.global_row, run.global_row + run.rows});
      if (held.empty()) continue;
      inputs.read(owner, role,
                  {run.local_row + held.first - run.global_row, held.count(), area.col, area.cols},
                  out + (held.first - wanted.first) * area.cols);
    }
}

}  // namespace

void read_token_rows(const Inputs& inputs, int rank, Role role, std::span<const std::int64_t> tokens,
                     std::int64_t col, std::int64_t cols, double* out) {
  for (std::size_t i = 0; i < tokens.size();) {
    std::size_t end = i + 1;
    while (end < tokens.size() && tokens[end] == tokens[end - 1] + 1) ++end;
    const auto rows = static_cast<std::int64_t>(end - i);
    read_tokens(inputs, rank, role, {tokens[i], rows, col, cols}, out);
    out += rows * cols;
    i = end;
  }
}

Attended attend(const Inputs& inputs, int rank, std::span<const std::int64_t> tokens) {
  const Problem& p = inputs.problem();
  const std::int64_t dim = p.attention.head_dim, heads = p.k / dim;
  const std::int64_t sharing = p.attention.heads / p.attention.kv_heads;
  const std::int64_t longest = longest_sequence(p);
  const auto doubles = [](std::int64_t count) {
    return std::vector<double>(static_cast<std::size_t>(count));
  };
  const auto dims = [](std::int64_t size) { return static_cast<int>(size); };
  const auto all = static_cast<std::int64_t>(tokens.size());
  Attended attended{doubles(all * p.k), doubles(all * heads)};
  std::vector<double> q = doubles(queries_at_once * dim), scores = doubles(queries_at_once * longest);
  std::vector<double> k = doubles(longest * dim), v = doubles(longest * dim);
  for (std::int64_t row = 0; row < all;) {
    const auto rest = tokens.subspan(static_cast<std::size_t>(row));
    const TokenRange sequence = p.sequence_of(rest.front());
    const auto queries = std::ranges::lower_bound(rest, sequence.end) - rest.begin();
    const std::int64_t keys = sequence.end - sequence.first;
    for (std::int64_t head = 0; head < heads; ++head) {
      read_tokens(inputs, rank, Role::keys, {sequence.first, keys, head / sharing * dim, dim}, k.data());
      read_tokens(inputs, rank, Role::values, {sequence.first, keys, head / sharing * dim, dim}, v.data());
      for (std::int64_t query = 0; query < queries; query += queries_at_once) {
        const std::int64_t count = smaller(queries_at_once, queries - query);
        const auto these = rest.subspan(static_cast<std::size_t>(query), static_cast<std::size_t>(count));
        read_token_rows(inputs, rank, Role::a, these, head * dim, dim, q.data());
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, dims(count), dims(keys), dims(dim), 1.0,
                    q.data(), dims(dim), k.data(), dims(dim), 0.0, scores.data(), dims(keys));
        for (std::int64_t i = 0; i < count; ++i)
          attended.lse[static_cast<std::size_t>((row + query + i) * heads + head)] =
              softmax(scores.data() + i * keys, keys,
                      p.attention.causal ? these[static_cast<std::size_t>(i)] + 1 - sequence.first : keys,
                      1 / std::sqrt(static_cast<double>(dim)));
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, dims(count), dims(dim), dims(keys), 1.0,
                    scores.data(), dims(keys), v.data(), dims(dim), 0.0,
                    attended.out.data() + (row + query) * p.k + head * dim, dims(p.k));
      }
    }
    row += queries;
  }
  return attended;
}

Attended attend(const Inputs& inputs, int rank, std::int64_t first, std::int64_t rows) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(rows));
  std::iota(tokens.begin(), tokens.end(), first);
  return attend(inputs, rank, tokens);
}

std::int64_t attend_bytes(const Problem& problem, std::int64_t rows) {
  const std::int64_t longest = longest_sequence(problem), dim = problem.attention.head_dim;
  return static_cast<std::int64_t>(sizeof(double)) *
         (rows * (problem.k + problem.k / dim) + queries_at_once * (dim + longest) + 2 * longest * dim);
}

}  // namespace shingle
