#include "sample.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "attention_reference.hpp"
#include "backward_reference.hpp"
#include "base/parallel.hpp"
#include "judge.hpp"
#include "reference.hpp"
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

/// A product of sampled rows with one weight, which is read once.
struct Part {
  /// The row of a group that a row of the product is added to, times a factor.
  struct Target {
    std::size_t group = 0;
    std::int64_t row = 0;
    double factor = 1;
  };
  int rank = 0, weight = 0;           ///< B of the rank, and which of the weights that it stacks
  std::vector<RowIndex::Place> of{};  ///< rows of op(A)
  std::vector<Target> to{};
  std::vector<double> a{};  ///< the rows; attended, or after the first of two products
};

/// Sampled rows of a panel.
struct Group {
  std::vector<std::int64_t> rows{};                 ///< global, ascending
  std::vector<double> x{};                          ///< the product, or what is attended, rows × n
  std::vector<double> lse{};                        ///< attention alone: rows × heads
  double scale = 0;                                 ///< size of the product with random signs
  std::map<Role, std::vector<double>> gradients{};  ///< of a backward, by role: rows × its columns
};

std::int64_t rows_apart(const Problem& problem) {
  constexpr std::int64_t sampled = 128, most = 64;
  return std::clamp<std::int64_t>(problem.m / sampled, 1, most);
}

/// Draws one of every `apart` rows in [0, end).
std::vector<std::int64_t> draw(std::int64_t end, std::int64_t apart, std::mt19937_64& bits) {
  std::vector<std::int64_t> rows;
  for (std::int64_t first = 0; first < end; first += apart) {
    const std::int64_t stretch = smaller(apart, end - first);
    rows.push_back(first + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(stretch)));
  }
  return rows;
}

/// Adds to a part the rows of a term that go to a group. `rows`: the group's rows, in the panel, ascending.
void add_sampled(const Term& term, std::span<const std::int64_t> rows, std::size_t group, Part& part) {
  std::size_t i = 0;
  for (const ARows& source : term.sources)
    for (std::int64_t row = source.row; row < source.row + source.rows; ++row, ++i) {
      const Term::To to = term.to.empty() ? Term::To{static_cast<std::int64_t>(i)} : term.to[i];
      const auto at = std::ranges::lower_bound(rows, to.row);
      if (at == rows.end() || *at != to.row) continue;
      part.of.push_back({source.owner, row});
      part.to.push_back({group, at - rows.begin(), to.factor});
    }
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
  std::vector<Group> groups{};
  std::vector<Part> parts{};
  std::map<int, Compared> compared{};  // by rank

  const Problem& problem() const { return inputs.problem(); }

  /// Draws rows of a panel, ascending. Of rows that are routed, each rank draws from those that it gets: its
  /// tiles hold no others.
  std::vector<std::int64_t> draw_of(const Panel& panel, std::mt19937_64& bits) const {
    const Problem& p = problem();
    const std::int64_t apart = rows_apart(p);
    if (!p.traits().routes() || p.traits().grouped) return draw(panel.rows, apart, bits);
    std::vector<std::int64_t> drawn;
    for (const int rank : panel.readers) {
      std::vector<std::int64_t> held;
      for (const GlobalRun& run : p.out_runs(rank))
        for (std::int64_t row = larger(run.global_row, panel.row);
             row < smaller(run.global_row + run.rows, panel.row + panel.rows); ++row)
          held.push_back(row - panel.row);
      for (const std::int64_t at : draw(std::ssize(held), apart, bits))
        drawn.push_back(held[static_cast<std::size_t>(at)]);
    }
    std::ranges::sort(drawn);
    return drawn;
  }

  /// Draws the rows that ranks hold, and finds them in their outputs.
  void draw_rows(std::span<const int> ranks, std::uint64_t seed) {
    const Problem& p = problem();
    constexpr std::int64_t whole = std::int64_t{1} << 40;
    std::mt19937_64 bits(seed);
    std::map<int, RowIndex> outputs;
    for (const int rank : ranks) outputs[rank].add(rank, p.out_runs(rank));
    std::map<int, std::map<std::int64_t, At>> found;
    std::map<std::tuple<int, int, std::size_t>, Part> by_weight;
    for (const Panel& panel : make_panels(inputs, ranks, whole)) {
      Group group;
      std::vector<std::int64_t> held;  // rows of the panel
      for (const std::int64_t row : draw_of(panel, bits)) {
        bool holds = false;
        for (const int rank : panel.readers)
          if (const auto place = outputs[rank].find(panel.row + row)) {
            found[rank][place->row] = {groups.size(), held.size()};
            holds = true;
          }
        if (!holds) continue;
        held.push_back(row);
        group.rows.push_back(panel.row + row);
      }
      if (held.empty()) continue;
      for (const Term& term : p.traits().backward ? std::vector<Term>{} : terms_of(inputs, panel)) {
        const std::size_t attended = p.traits().attends ? groups.size() : 0;  // each group by itself
        Part& part =
            by_weight.try_emplace({term.rank, term.weight, attended}, term.rank, term.weight).first->second;
        add_sampled(term, held, groups.size(), part);
      }
      groups.push_back(std::move(group));
    }
    for (auto& [weight, part] : by_weight)
      if (!part.of.empty()) parts.push_back(std::move(part));
    for (const auto& [rank, rows] : found)
      for (const auto& [row, at] : rows) {
        compared[rank].rows.push_back(row);
        compared[rank].at.push_back(at);
      }
  }

  void read_a() {
    const Problem& p = problem();
    parallel_for(parts.size(), [&](std::size_t i) {
      Part& part = parts[i];
      if (p.traits().attends) {
        Group& group = groups[part.to.front().group];
        Attended attended = attend(inputs, part.rank, group.rows);
        part.a = std::move(attended.out);
        if (p.traits().shards_tokens()) group.lse = std::move(attended.lse);
        return;
      }
      part.a.resize(part.of.size() * static_cast<std::size_t>(p.k));
      double* to = part.a.data();
      for (const auto& [rank, row] : part.of) {
        inputs.read(rank, Role::a, p.transpose_a ? Area{0, p.k, row, 1} : Area{row, 1, 0, p.k}, to);
        to += p.k;
      }
    });
  }

  void take_gradients() {
    std::vector<std::pair<const Group*, std::vector<double>*>> wanted;
    std::vector<Role> roles;
    for (Group& group : groups)
      for (const Role role : {Role::out, Role::keys_grad, Role::values_grad}) {
        wanted.emplace_back(&group, &group.gradients[role]);
        roles.push_back(role);
      }
    parallel_for(wanted.size(), [&](std::size_t i) {
      const auto& [group, to] = wanted[i];
      *to = gradient(inputs, roles[i], group->rows);
    });
  }

  /// Attention without a product: x is what is attended.
  void take_attended() {
    for (Part& part : parts) {
      Group& group = groups[part.to.front().group];
      group.x = std::move(part.a);
      group.scale = std::sqrt(mean_square(group.x));
    }
  }

  /// Computes x of all groups, and its scale.
  void multiply() {
    constexpr std::int64_t columns = 64;
    const Problem& p = problem();
    if (p.traits().chains()) multiply_first();
    const Weight weight = p.traits().chains() ? Weight{Role::down, p.inner, p.n} : Weight{Role::b, p.k, p.n};
    std::vector<double> a_squares(parts.size());
    parallel_for(parts.size(), [&](std::size_t i) { a_squares[i] = mean_square(parts[i].a); });
    for (Group& group : groups) group.x.resize(group.rows.size() * static_cast<std::size_t>(p.n));
    std::mutex mutex;
    // Several parts may add to a row, so a block of columns has all of them.
    parallel_for(static_cast<std::size_t>(ceil_div(p.n, columns)), [&](std::size_t block) {
      const std::int64_t col = static_cast<std::int64_t>(block) * columns, cols = smaller(columns, p.n - col);
      std::vector<double> squares(groups.size()), products;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const Part& part = parts[i];
        products.assign(part.of.size() * static_cast<std::size_t>(cols), 0);
        const double b_square =
            multiply_columns(part, weight, col, cols, products.data(), cols) / static_cast<double>(p.n);
        const double* from = products.data();
        for (const auto& [to, row, factor] : part.to) {
          Group& group = groups[to];
          cblas_daxpy(static_cast<int>(cols), factor, from, 1, group.x.data() + row * p.n + col, 1);
          squares[to] += a_squares[i] * b_square * factor * factor / static_cast<double>(group.rows.size());
          from += cols;
        }
      }
      const std::lock_guard lock(mutex);
      for (std::size_t group = 0; group < groups.size(); ++group) groups[group].scale += squares[group];
    });
    for (Group& group : groups) group.scale = result_size(p, group.scale);
  }

 private:
  static double mean_square(const std::vector<double>& values) {
    const auto count = static_cast<int>(values.size());
    return cblas_ddot(count, values.data(), 1, values.data(), 1) / count;
  }

  /// Replaces the rows of all parts with their first product, activated.
  void multiply_first() {
    constexpr std::int64_t columns = 256;
    const Problem& p = problem();
    const Weight weight{Role::b, p.k, p.b_cols()};
    const auto blocks = static_cast<std::size_t>(ceil_div(weight.n, columns));
    std::vector<std::vector<double>> x(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i)
      x[i].resize(parts[i].of.size() * static_cast<std::size_t>(weight.n));
    parallel_for(parts.size() * blocks, [&](std::size_t at) {
      const std::int64_t col = static_cast<std::int64_t>(at % blocks) * columns;
      multiply_columns(parts[at / blocks], weight, col, smaller(columns, weight.n - col),
                       x[at / blocks].data() + col, weight.n);
    });
    parallel_for(parts.size(), [&](std::size_t i) { parts[i].a = activated(inputs, parts[i].rank, x[i]); });
  }

  /// Adds some columns of a part's product to `x`, whose rows lie `stride` apart. Returns the sum of squares
  /// of the weight's elements.
  double multiply_columns(const Part& part, Weight weight, std::int64_t col, std::int64_t cols, double* x,
                          std::int64_t stride) const {
    weight.number = part.weight;
    constexpr std::int64_t block = 512;
    const bool turned = problem().transpose_b;
    std::vector<double> b;
    double squares = 0;
    for (std::int64_t k = 0; k < weight.k; k += block) {
      const std::int64_t ks = smaller(block, weight.k - k);
      b.resize(static_cast<std::size_t>(ks * cols));
      inputs.read(part.rank, weight.role, weight.block(problem(), k, ks, col, cols), b.data());
      const auto count = static_cast<int>(b.size());
      squares += cblas_ddot(count, b.data(), 1, b.data(), 1);
      cblas_dgemm(CblasRowMajor, CblasNoTrans, turned ? CblasTrans : CblasNoTrans,
                  static_cast<int>(part.of.size()), static_cast<int>(cols), static_cast<int>(ks), 1.0,
                  part.a.data() + k, static_cast<int>(weight.k), b.data(),
                  static_cast<int>(turned ? ks : cols), 1.0, x, static_cast<int>(stride));
    }
    return squares;
  }
};

bool RowSample::serves(const Problem& problem) {
  return problem.traits().products > 0 || problem.traits().attends;
}

RowSample::RowSample(const Inputs& inputs, std::span<const int> ranks, std::uint64_t seed)
    : state_(new State{inputs}) {
  if (!serves(inputs.problem()))
    throw Unsupported(describe(inputs.problem()) + " has no rows that can be computed one by one");
  openblas_set_num_threads(1);  // each thread here calls OpenBLAS itself
  state_->draw_rows(ranks, seed);
  if (inputs.problem().traits().backward) {
    state_->take_gradients();
    return;
  }
  state_->read_a();
  inputs.problem().traits().multiplies() ? state_->multiply() : state_->take_attended();
  state_->parts.clear();
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
                       return !is_number(output.role) && rounds(p, output.role);
                     });
  result.tolerance = exact ? 0 : tolerance(p);
  std::mutex mutex;
  parallel_for(outputs.size(), [&](std::size_t i) {
    const Output& output = outputs[i];
    if (is_number(output.role)) {
      const std::lock_guard lock(mutex);
      return compare_numbers(state_->inputs, output, result);
    }
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
