#include "sample.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "attention_reference.hpp"
#include "backward_reference.hpp"
#include "base/parallel.hpp"
#include "judge.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

/// Global rows, with the rank and local row of each.
class RowIndex {
 public:
  struct Place {
    int rank = 0;
    std::int64_t row = 0;
  };

  void add(int rank, const std::vector<GlobalRun>& runs) {
    for (const GlobalRun& run : runs) runs_[run.global_row] = {rank, run};
  }
  /// Empty if no rank holds the row.
  std::optional<Place> find(std::int64_t global) const {
    auto after = runs_.upper_bound(global);
    if (after == runs_.begin()) return std::nullopt;
    const auto& [rank, run] = std::prev(after)->second;
    if (global >= run.global_row + run.rows) return std::nullopt;
    return Place{rank, run.local_row + global - run.global_row};
  }

 private:
  std::map<std::int64_t, std::pair<int, GlobalRun>> runs_;  // by first global row
};

/// Sampled rows that are sums of the same products.
struct Group {
  std::vector<int> terms;                ///< the ranks with the B of each product
  int reader = -1;                       ///< the only rank with this product; -1: any rank that holds the row
  std::vector<std::int64_t> rows{};      ///< global, ascending
  std::vector<std::vector<double>> a{};  ///< by term: rows × k, attended if the operator attends
  std::vector<double> x{};               ///< the product, or what is attended, rows × n
  std::vector<double> lse{};             ///< attention alone: rows × heads
  double scale = 0;                      ///< size of the product with random signs
  std::map<Role, std::vector<double>> gradients{};  ///< of a backward, by role: rows × its columns
};

std::int64_t rows_apart(const Problem& problem) {
  constexpr std::int64_t sampled = 128, most = 128;
  return std::clamp<std::int64_t>(problem.m / sampled, 1, most);
}

/// Draws one of every `apart` rows in [first, end).
std::vector<std::int64_t> draw(std::int64_t first, std::int64_t end, std::int64_t apart,
                               std::mt19937_64& bits) {
  std::vector<std::int64_t> rows;
  for (; first < end; first += apart) {
    const std::int64_t stretch = smaller(apart, end - first);
    rows.push_back(first + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(stretch)));
  }
  return rows;
}

std::vector<Group> draw_groups(const Problem& p, std::span<const int> ranks, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  const std::int64_t apart = rows_apart(p);
  std::vector<Group> groups;
  if (p.traits().reduces()) {
    Group& all = groups.emplace_back();
    for (int rank = 0; rank < p.world; ++rank) all.terms.push_back(rank);
    all.rows = draw(0, p.m, apart, bits);
  } else if (p.op == Op::gemm_alltoall) {
    for (int source = 0; source < p.world; ++source)
      groups.push_back(
          {.terms = {source},
           .rows = draw(p.routing->global_base(source), p.routing->global_base(source + 1), apart, bits)});
  } else {
    const std::vector<std::int64_t> rows = draw(0, p.global_rows(), apart, bits);
    for (const int rank : ranks) groups.push_back({.terms = {rank}, .reader = rank, .rows = rows});
  }
  return groups;
}

}  // namespace

struct RowSample::State {
  /// Place of a row's reference.
  struct At {
    std::size_t group = 0, index = 0;
  };
  /// Compared rows of a rank's output, ascending, with the place of each reference.
  struct Compared {
    std::vector<std::int64_t> rows;
    std::vector<At> at;
  };

  const Inputs& inputs;
  std::vector<Group> groups;
  std::map<int, Compared> compared;  // by rank

  const Problem& problem() const { return inputs.problem(); }

  /// Finds the groups' rows in the ranks' outputs, and drops rows that no rank holds.
  void place(std::span<const int> ranks) {
    std::map<int, RowIndex> outputs;
    for (const int rank : ranks) outputs[rank].add(rank, problem().out_runs(rank));
    const auto holds = [&](int rank, const Group& group, std::int64_t row) {
      const bool reads = group.reader < 0 || group.reader == rank;
      return reads ? outputs[rank].find(row) : std::nullopt;
    };
    for (Group& group : groups)
      std::erase_if(group.rows, [&](std::int64_t row) {
        return std::ranges::none_of(ranks, [&](int rank) { return holds(rank, group, row).has_value(); });
      });
    for (const int rank : ranks) {
      std::map<std::int64_t, At> found;
      for (std::size_t g = 0; g < groups.size(); ++g)
        for (std::size_t i = 0; i < groups[g].rows.size(); ++i)
          if (const auto place = holds(rank, groups[g], groups[g].rows[i])) found[place->row] = {g, i};
      for (const auto& [row, at] : found) {
        compared[rank].rows.push_back(row);
        compared[rank].at.push_back(at);
      }
    }
  }

  /// Reads op(A) for all groups and terms.
  void read_a() {
    const Problem& p = problem();
    RowIndex owners;
    if (p.traits().gathers() || p.op == Op::gemm_alltoall)
      for (int rank = 0; rank < p.world; ++rank) owners.add(rank, p.a_runs(rank));
    std::vector<std::pair<Group*, std::size_t>> parts;
    for (Group& group : groups) {
      group.a.resize(group.terms.size());
      for (std::size_t t = 0; t < group.terms.size(); ++t) parts.emplace_back(&group, t);
    }
    parallel_for(parts.size(), [&](std::size_t part) {
      const auto& [group, t] = parts[part];
      std::vector<double>& a = group->a[t];
      if (p.traits().attends) {
        Attended attended = attend(inputs, group->terms[t], group->rows);
        a = std::move(attended.out);
        if (p.traits().shards_tokens()) group->lse = std::move(attended.lse);
        return;
      }
      a.resize(group->rows.size() * static_cast<std::size_t>(p.k));
      double* row = a.data();
      for (const std::int64_t global : group->rows) {
        const RowIndex::Place at = owners.find(global).value_or(RowIndex::Place{group->terms[t], global});
        inputs.read(at.rank, Role::a, p.transpose_a ? Area{0, p.k, at.row, 1} : Area{at.row, 1, 0, p.k}, row);
        row += p.k;
      }
    });
  }

  void take_gradients() {
    std::vector<std::pair<const Group*, std::vector<double>*>> parts;
    std::vector<Role> roles;
    for (Group& group : groups)
      for (const Role role : {Role::out, Role::keys_grad, Role::values_grad}) {
        parts.emplace_back(&group, &group.gradients[role]);
        roles.push_back(role);
      }
    parallel_for(parts.size(), [&](std::size_t part) {
      const auto& [group, to] = parts[part];
      *to = gradient(inputs, roles[part], group->rows);
    });
  }

  /// Attention without a product: x is what is attended.
  void take_attended() {
    for (Group& group : groups) {
      group.x = std::move(group.a.front());
      const auto count = static_cast<int>(group.x.size());
      if (count > 0) group.scale = std::sqrt(cblas_ddot(count, group.x.data(), 1, group.x.data(), 1) / count);
    }
  }

  /// Computes x of all groups, by blocks of columns, and its scale.
  void multiply() {
    constexpr std::int64_t columns = 256;
    const Problem& p = problem();
    const auto blocks = static_cast<std::size_t>(ceil_div(p.n, columns));
    std::mutex mutex;
    for (Group& group : groups) group.x.resize(group.rows.size() * static_cast<std::size_t>(p.n));
    parallel_for(groups.size() * blocks, [&](std::size_t part) {
      Group& group = groups[part / blocks];
      const std::int64_t col = static_cast<std::int64_t>(part % blocks) * columns;
      const double square = add_columns(group, col, smaller(columns, p.n - col));
      const std::lock_guard lock(mutex);
      group.scale += square;
    });
    for (Group& group : groups) group.scale = std::sqrt(group.scale);
  }

  /// Computes some columns of the product. Returns their part of its mean square with random signs.
  double add_columns(Group& group, std::int64_t col, std::int64_t cols) const {
    constexpr std::int64_t block = 512;
    const Problem& p = problem();
    if (group.rows.empty()) return 0;
    std::vector<double> b;
    double mean_square = 0;
    for (std::size_t t = 0; t < group.terms.size(); ++t) {
      double squares = 0;
      for (std::int64_t k = 0; k < p.k; k += block) {
        const std::int64_t ks = smaller(block, p.k - k);
        b.resize(static_cast<std::size_t>(ks * cols));
        inputs.read(group.terms[t], Role::b, p.transpose_b ? Area{col, cols, k, ks} : Area{k, ks, col, cols},
                    b.data());
        const auto count = static_cast<int>(b.size());
        squares += cblas_ddot(count, b.data(), 1, b.data(), 1);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
                    static_cast<int>(group.rows.size()), static_cast<int>(cols), static_cast<int>(ks), 1.0,
                    group.a[t].data() + k, static_cast<int>(p.k), b.data(),
                    static_cast<int>(p.transpose_b ? ks : cols), 1.0, group.x.data() + col,
                    static_cast<int>(p.n));
      }
      const std::vector<double>& a = group.a[t];
      const double a_square =
          cblas_ddot(static_cast<int>(a.size()), a.data(), 1, a.data(), 1) / static_cast<double>(a.size());
      mean_square += a_square * squares / static_cast<double>(p.n);
    }
    return mean_square;
  }
};

bool RowSample::serves(const Problem& problem) {
  return (problem.traits().products == 1 && !problem.traits().grouped) || problem.traits().attends;
}

RowSample::RowSample(const Inputs& inputs, std::span<const int> ranks, std::uint64_t seed)
    : state_(new State{inputs, draw_groups(inputs.problem(), ranks, seed), {}}) {
  if (!serves(inputs.problem()))
    throw Unsupported(describe(inputs.problem()) + " has no rows that can be computed one by one");
  openblas_set_num_threads(1);  // each thread here calls OpenBLAS itself
  state_->place(ranks);
  if (inputs.problem().traits().backward) {
    state_->take_gradients();
    return;
  }
  state_->read_a();
  inputs.problem().traits().multiplies() ? state_->multiply() : state_->take_attended();
  for (Group& group : state_->groups) group.a.clear();
}

RowSample::RowSample(RowSample&&) noexcept = default;
RowSample& RowSample::operator=(RowSample&&) noexcept = default;
RowSample::~RowSample() = default;

std::int64_t RowSample::apart() const {
  return rows_apart(state_->problem());
}

std::span<const std::int64_t> RowSample::rows(int rank) const {
  const auto found = state_->compared.find(rank);
  return found == state_->compared.end() ? std::span<const std::int64_t>() : found->second.rows;
}

Check RowSample::check(std::span<const Output> outputs) const {
  const Problem& p = state_->problem();
  Check result;
  const bool exact = state_->inputs.exact() && std::ranges::none_of(outputs, [&](const Output& output) {
                       return rounds(p, output.role);
                     });
  result.tolerance = exact ? 0 : tolerance(p);
  std::mutex mutex;
  parallel_for(outputs.size(), [&](std::size_t i) {
    const Output& output = outputs[i];
    const std::span<const std::int64_t> rows = this->rows(output.rank);
    const std::int64_t cols = shape_of(p, output.role, output.rank).cols;
    const auto row_bytes = static_cast<std::size_t>(cols) * size_bytes(dtype_of(p, output.role));
    Judge judge(state_->inputs);
    Finish finish(state_->inputs, output.rank);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const State::At at = state_->compared.at(output.rank).at[r];
      const Group& group = state_->groups[at.group];
      const auto* elements = static_cast<const std::byte*>(output.memory) + r * row_bytes;
      if (p.traits().backward) {
        const std::vector<double>& wanted = group.gradients.at(output.role);
        judge.compare({output.rank, output.role, rows[r], 1, elements},
                      wanted.data() + static_cast<std::int64_t>(at.index) * cols, root_mean_square(wanted));
        continue;
      }
      if (output.role == Role::out_lse) {
        judge.compare({output.rank, output.role, rows[r], 1, elements},
                      group.lse.data() + static_cast<std::int64_t>(at.index) * cols, 1);
        continue;
      }
      judge.compare({output.rank, output.role, rows[r], 1, elements}, finish,
                    group.x.data() + at.index * static_cast<std::size_t>(p.n), group.scale);
    }
    const std::lock_guard lock(mutex);
    judge.merge_into(result);
  });
  return result;
}

}  // namespace shingle
