#include "reference.hpp"

#include "attention_reference.hpp"
#include "slots.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace shingle {
namespace {

// Blocks of B (512×512 doubles: 2 MiB) stay in a core's cache while dgemm runs over the panel's rows.
constexpr std::int64_t block = 512;

/// Owners of global rows [row, row + rows) of a gathered A, in order.
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

/// Rows of A of a panel, for one term.
std::vector<ARows> sources_of(const Problem& p, const Panel& panel, int term) {
  if (!panel.gathered.empty()) return panel.gathered;
  return {{term, panel.row - (p.routing ? p.routing->global_base(term) : 0), panel.rows}};
}

/// Adds the rows of one term to x. Returns their mean square.
double add_rows(const Inputs& inputs, const Panel& panel, int term, std::vector<double>& x) {
  const std::int64_t n = inputs.problem().n;
  std::vector<double> a;
  double total = 0;
  std::int64_t done = 0;
  for (const ARows& s : sources_of(inputs.problem(), panel, term)) {
    a.resize(static_cast<std::size_t>(s.rows * n));
    inputs.read(s.owner, Role::a, {s.row, s.rows, 0, n}, a.data());
    total += squares(a);
    cblas_daxpy(static_cast<int>(a.size()), 1.0, a.data(), 1, x.data() + done * n, 1);
    done += s.rows;
  }
  return total / static_cast<double>(panel.rows * n);
}

/// The attention of a panel's rows.
Product attention_of(const Inputs& inputs, const Panel& panel) {
  auto [out, lse] = attend(inputs, panel.terms.front(), panel.row, panel.rows);
  const double mean_square = squares(out) / static_cast<double>(out.size());
  return {std::move(out), std::move(lse), std::sqrt(mean_square)};
}

/// A product of one term: rows of op(A) times a weight of the term. The rows are read from their owners, or
/// are `held` (rows × k).
struct Factors {
  int term;
  std::vector<ARows> sources;
  const double* held;
  Role weight;
  std::int64_t k, n;
  int number;  ///< which of the weights that the matrix stacks

  std::int64_t rows() const {
    std::int64_t count = 0;
    for (const ARows& source : sources) count += source.rows;
    return count;
  }
};

/// Adds a product to x (rows × n). Returns the mean square of products of its size with random signs.
double add_product(const Inputs& inputs, const Factors& f, std::vector<double>& x) {
  const Problem& p = inputs.problem();
  const bool turned = p.transpose_a && f.held == nullptr;
  std::vector<double> a, b;
  double a_squares = 0, b_squares = 0;
  for (std::int64_t k = 0; k < f.k; k += block) {
    const std::int64_t ks = smaller(block, f.k - k);
    a.resize(static_cast<std::size_t>(f.rows() * ks));
    std::int64_t done = 0;
    for (const ARows& s : f.sources) {
      const Area area = turned ? Area{k, ks, s.row, s.rows} : Area{s.row, s.rows, k, ks};
      if (f.held == nullptr) inputs.read(s.owner, Role::a, area, a.data() + done * ks);
      for (std::int64_t i = done; i < done + s.rows && f.held != nullptr; ++i)
        std::copy_n(f.held + i * f.k + k, ks, a.data() + i * ks);
      done += s.rows;
    }
    a_squares += squares(a);
    for (std::int64_t col = 0; col < f.n; col += block) {
      const std::int64_t cols = smaller(block, f.n - col);
      b.resize(static_cast<std::size_t>(ks * cols));
      inputs.read(
          f.term, f.weight,
          p.transpose_b ? Area{f.number * f.n + col, cols, k, ks} : Area{f.number * f.k + k, ks, col, cols},
          b.data());
      b_squares += squares(b);
      done = 0;
      for (const ARows& s : f.sources) {
        cblas_dgemm(
            CblasRowMajor, turned ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
            static_cast<int>(s.rows), static_cast<int>(cols), static_cast<int>(ks), 1.0, a.data() + done * ks,
            static_cast<int>(turned ? s.rows : ks), b.data(), static_cast<int>(p.transpose_b ? ks : cols),
            1.0, x.data() + done * f.n + col, static_cast<int>(f.n));
        done += s.rows;
      }
    }
  }
  const auto size = [](std::int64_t rows, std::int64_t cols) {
    return static_cast<double>(rows) * static_cast<double>(cols);
  };
  return a_squares / size(f.rows(), f.k) * (b_squares / size(f.k, f.n)) * static_cast<double>(f.k);
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

/// The first of two products after its activation, rows × inner.
std::vector<double> first_product(const Inputs& inputs, const std::vector<ARows>& sources, int term,
                                  int weight) {
  const Problem& p = inputs.problem();
  const Factors factors{term, sources, nullptr, Role::b, p.k, p.b_cols(), weight};
  const std::int64_t rows = factors.rows();
  std::vector<double> x(static_cast<std::size_t>(rows * p.b_cols()));
  add_product(inputs, factors, x);
  const std::vector<double> bias =
      p.epilogue.bias ? read_vector(inputs, term, Role::bias) : std::vector<double>{};
  std::vector<double> hidden(static_cast<std::size_t>(rows * p.inner));
  for (std::int64_t row = 0; row < rows; ++row)
    apply(p.epilogue, x.data() + row * p.b_cols(), bias,
          std::span(hidden).subspan(static_cast<std::size_t>(row * p.inner),
                                    static_cast<std::size_t>(p.inner)));
  return hidden;
}

/// Adds the product, or the two, of rows with the weights of one term. Returns the mean square with random
/// signs.
double add_products(const Inputs& inputs, const std::vector<ARows>& sources, int term, int weight,
                    std::vector<double>& x) {
  const Problem& p = inputs.problem();
  if (!p.traits().chains())
    return add_product(inputs, {term, sources, nullptr, Role::b, p.k, p.n, weight}, x);
  const std::vector<double> hidden = first_product(inputs, sources, term, weight);
  const std::int64_t rows = std::ssize(hidden) / p.inner;
  return add_product(inputs, {term, {{term, 0, rows}}, hidden.data(), Role::down, p.inner, p.n, weight}, x);
}

/// Adds the product of one term of the sum. Returns the mean square with random signs.
double add_term(const Inputs& inputs, const Panel& panel, int term, std::vector<double>& x) {
  const Problem& p = inputs.problem();
  const std::vector<ARows> sources = sources_of(p, panel, term);
  if (!p.traits().attends) return add_products(inputs, sources, term, panel.weight, x);
  const std::vector<double> attended = attend(inputs, term, sources.front().row, panel.rows).out;
  return add_product(inputs, {term, sources, attended.data(), Role::b, p.k, p.n, 0}, x);
}

/// Tokens [row, row + rows) of a rank's received rows, as rows of the ranks that own them.
std::vector<ARows> tokens_of(const Problem& p, std::span<const Routing::Row> rows) {
  std::vector<ARows> found;
  for (const auto& [source, row] : rows) {
    const std::int64_t token = row % p.a_rows(source);
    if (!found.empty() && found.back().owner == source && found.back().row + found.back().rows == token)
      ++found.back().rows;
    else
      found.push_back({source, token, 1});
  }
  return found;
}

/// The choices of a source's tokens [first, first + rows) that an expert takes, each with its row by expert.
struct RoutedChoice {
  TokenChoice of;
  std::int64_t by_expert = 0;
};
std::vector<RoutedChoice> choices_of(const Inputs& inputs, int source, int expert, std::int64_t first,
                                     std::int64_t rows) {
  const Problem& p = inputs.problem();
  const Routing& routing = *p.routing;
  const std::int64_t base = routing.receive_base(expert, source);
  std::vector<RoutedChoice> found;
  if (p.has_slots()) {
    const TakenChoices taken = taken_choices(inputs, source);
    const std::vector<TokenChoice>& slots = taken.of_expert[static_cast<std::size_t>(expert)];
    for (std::size_t slot = 0; slot < slots.size(); ++slot)
      if (slots[slot].token >= first && slots[slot].token < first + rows)
        found.push_back({slots[slot], base + static_cast<std::int64_t>(slot)});
    return found;
  }
  for (std::int64_t choice = 0; choice < p.experts.topk; ++choice)
    for (std::int64_t token = first; token < first + rows; ++token)
      if (const std::int64_t routed = choice * (routing.rows(source) / p.choices()) + token;
          routing.dest(source, routed) == expert)
        found.push_back({{token, choice}, base + routing.count_before(source, expert, routed)});
  return found;
}

/// Adds the weighed products of a panel's tokens, which `owner` has. Returns their mean square.
double add_choices(const Inputs& inputs, const Panel& panel, int owner, std::vector<double>& x) {
  const Problem& p = inputs.problem();
  const Routing& routing = *p.routing;
  const int source = p.source_of(owner);
  const std::int64_t first = panel.row - p.out_runs(source).front().global_row;
  double mean_square = 0;
  const auto add = [&](int expert, int holder, const std::vector<RoutedChoice>& chosen) {
    std::vector<ARows> rows;
    for (const auto& [of, by_expert] : chosen)
      rows.push_back(p.traits().takes_tokens() ? ARows{source, of.token, 1} : ARows{holder, by_expert, 1});
    std::vector<double> products(rows.size() * static_cast<std::size_t>(p.n));
    const double square = add_products(inputs, rows, holder, routing.weight_of(expert), products);
    for (std::size_t row = 0; row < chosen.size(); ++row) {
      const auto [token, choice] = chosen[row].of;
      double weight = 0;
      inputs.read(source, Role::topk_weights, {token, 1, choice, 1}, &weight);
      cblas_daxpy(static_cast<int>(p.n), weight, products.data() + row * static_cast<std::size_t>(p.n), 1,
                  x.data() + (token - first) * p.n, 1);
      mean_square += weight * weight * square / static_cast<double>(panel.rows);
    }
  };
  for (int expert = 0; expert < routing.experts(); ++expert) {
    const std::vector<RoutedChoice> chosen = choices_of(inputs, source, expert, first, panel.rows);
    for (int holder = 0; holder < p.world && !chosen.empty(); ++holder)
      if (routing.receives(holder, expert)) add(expert, holder, chosen);
  }
  return mean_square;
}

/// Adds the panels of a rank's experts.
void cut_experts(const Problem& p, int rank, std::int64_t most_rows, std::vector<Panel>& panels) {
  const Routing& routing = *p.routing;
  const std::int64_t base = p.out_runs(rank).front().global_row;
  const std::vector<Routing::Row> received = routing.received_rows(rank);
  for (int weight = 0; weight < routing.experts_per_rank(); ++weight) {
    const int expert = routing.first_expert(rank) + weight;
    const std::int64_t end = routing.receive_base(expert, p.world);
    for (std::int64_t row = routing.receive_base(expert, 0); row < end; row += most_rows) {
      const std::int64_t rows = smaller(most_rows, end - row);
      const std::span<const Routing::Row> of(received.data() + row, static_cast<std::size_t>(rows));
      panels.push_back({base + row, rows, {rank}, tokens_of(p, of), weight, {rank}});
    }
  }
}

/// Adds the panels of a rank's experts, of the rows that have a token.
void cut_slots(const Inputs& inputs, int rank, std::int64_t most_rows, std::vector<Panel>& panels) {
  const Problem& p = inputs.problem();
  const Routing& routing = *p.routing;
  for (int source = 0; source < p.world; ++source) {
    const TakenChoices taken = taken_choices(inputs, source);
    for (int weight = 0; weight < routing.experts_per_rank(); ++weight) {
      const int expert = routing.first_expert(rank) + weight;
      const std::int64_t base = p.out_runs(rank).front().global_row + routing.receive_base(expert, source);
      const std::vector<TokenChoice>& slots = taken.of_expert[static_cast<std::size_t>(expert)];
      for (std::int64_t first = 0; first < std::ssize(slots); first += most_rows) {
        Panel panel{base + first, smaller(most_rows, std::ssize(slots) - first), {rank}, {}, weight, {rank}};
        for (std::int64_t slot = first; slot < first + panel.rows; ++slot)
          panel.gathered.push_back({source, slots[static_cast<std::size_t>(slot)].token, 1});
        panels.push_back(std::move(panel));
      }
    }
  }
}

}  // namespace

std::vector<Panel> make_panels(const Inputs& inputs, std::span<const int> ranks, std::int64_t most_rows) {
  const Problem& p = inputs.problem();
  if (!p.has_slots() || p.traits().combines()) return make_panels(p, ranks, most_rows);
  std::vector<Panel> panels;
  for (const int rank : ranks) cut_slots(inputs, rank, most_rows, panels);
  return panels;
}

std::vector<Panel> make_panels(const Problem& problem, std::span<const int> ranks, std::int64_t most_rows) {
  std::vector<Panel> panels;
  const auto cut = [&](std::int64_t row, std::int64_t rows, const std::vector<int>& terms,
                       std::span<const int> readers) {
    for (const std::int64_t end = row + rows; row < end; row += most_rows) {
      Panel panel{row, smaller(most_rows, end - row), terms, {}, 0, {}};
      if (problem.traits().gathers()) panel.gathered = owners(problem, panel.row, panel.rows);
      for (const int rank : readers)
        if (holds(problem, rank, panel)) panel.readers.push_back(rank);
      if (!panel.readers.empty()) panels.push_back(std::move(panel));
    }
  };
  if (problem.traits().replicates_tokens()) {
    cut(0, problem.m, {0}, ranks);
  } else if (problem.traits().combines()) {
    for (const int& rank : ranks) {
      const GlobalRun tokens = problem.out_runs(rank).front();
      cut(tokens.global_row, tokens.rows, {rank}, {&rank, 1});
    }
  } else if (problem.traits().grouped) {
    for (const int& rank : ranks) cut_experts(problem, rank, most_rows, panels);
  } else if (problem.traits().reduces()) {
    std::vector<int> all(static_cast<std::size_t>(problem.world));
    for (int rank = 0; rank < problem.world; ++rank) all[static_cast<std::size_t>(rank)] = rank;
    cut(0, problem.m, all, ranks);
  } else if (problem.op == Op::gemm_alltoall || problem.op == Op::alltoall) {
    for (int source = 0; source < problem.world; ++source)
      cut(problem.routing->global_base(source), problem.routing->rows(source), {source}, ranks);
  } else if (problem.traits().shards_tokens()) {
    for (const int& rank : ranks)  // attention of another rank's shard would not be compared
      for (const GlobalRun& run : problem.out_runs(rank)) cut(run.global_row, run.rows, {rank}, {&rank, 1});
  } else {
    for (const int& rank : ranks) cut(0, problem.global_rows(), {rank}, {&rank, 1});
  }
  return panels;
}

Product multiply(const Inputs& inputs, const Panel& panel) {
  const Problem& p = inputs.problem();
  if (p.traits().shards_tokens()) return attention_of(inputs, panel);
  Product product;
  product.x.resize(static_cast<std::size_t>(panel.rows * p.n));
  double mean_square = 0;
  const auto add = p.traits().combines() ? add_choices : p.traits().multiplies() ? add_term : add_rows;
  for (const int term : panel.terms) mean_square += add(inputs, panel, term, product.x);
  product.scale = std::sqrt(mean_square) * std::abs(static_cast<double>(p.epilogue.scale));
  return product;
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
