#include "oracle.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <thread>

#include "attention_reference.hpp"
#include "backward_reference.hpp"
#include "base/parallel.hpp"
#include "judge.hpp"

namespace shingle {
namespace {

constexpr std::int64_t panel_bytes = std::int64_t{64} << 20;

std::int64_t threads() {
  return larger(std::thread::hardware_concurrency(), 1);
}

/// Number of rows that keeps a panel within its memory. Where a panel has few terms, every thread gets a
/// panel.
std::int64_t panel_rows(const Problem& problem) {
  const std::int64_t widest = larger(problem.n, problem.b_cols());
  const std::int64_t fit = panel_bytes / (widest * static_cast<std::int64_t>(sizeof(double)));
  const std::int64_t each = problem.traits().combines() ? problem.m : ceil_div(problem.m, threads());
  return std::max<std::int64_t>(std::min(fit, each), 16);
}

/// The sum of a panel's terms, which several threads add.
struct Sum {
  explicit Sum(const Panel& of) : panel(of) {}

  const Panel& panel;
  std::vector<Term> terms{};
  std::mutex mutex{};
  Product product{};
  std::size_t added = 0;
};

/// Compares all rows of the panel that an output holds.
void compare(const Inputs& inputs, const Panel& panel, const Product& product, const Output& output,
             Judge& judge) {
  Finish finish(inputs, output.rank);
  const Problem& p = inputs.problem();
  const std::int64_t cols = shape_of(p, output.role, output.rank).cols;
  const auto row_bytes = static_cast<std::size_t>(cols) * size_bytes(dtype_of(p, output.role));
  const double scale = result_size(p, product.mean_square);
  for (const GlobalRun& run : p.out_runs(output.rank)) {
    const std::int64_t end = smaller(run.global_row + run.rows, panel.row + panel.rows);
    for (std::int64_t row = larger(run.global_row, panel.row); row < end; row += judged_tile) {
      const std::int64_t local = run.local_row + row - run.global_row;
      const auto* elements =
          static_cast<const std::byte*>(output.memory) + static_cast<std::size_t>(local) * row_bytes;
      const GotRows got{output.rank, output.role, local, smaller(judged_tile, end - row), elements};
      if (output.role == Role::out_lse)
        judge.compare(got, product.lse.data() + (row - panel.row) * cols, 1);
      else
        judge.compare(got, finish, product.x.data() + (row - panel.row) * p.n, scale);
    }
  }
}

/// Consecutive tokens of an output of a backward.
struct GradientRows {
  const Output* output;
  GlobalRun run;
};

/// Compares gradients, some rows at a time.
void check_gradients(const Inputs& inputs, std::span<const Output> outputs, Check& result) {
  const Problem& p = inputs.problem();
  const std::int64_t most = panel_rows(p);
  std::vector<GradientRows> panels;
  for (const Output& output : outputs)
    for (const GlobalRun& run : p.out_runs(output.rank))
      for (std::int64_t row = 0; row < run.rows; row += most)
        panels.push_back(
            {&output, {run.local_row + row, run.global_row + row, smaller(most, run.rows - row)}});
  std::mutex mutex;
  parallel_for(panels.size(), [&](std::size_t i) {
    const auto& [output, run] = panels[i];
    const std::int64_t cols = shape_of(p, output->role, output->rank).cols;
    const std::vector<double> wanted = gradient(inputs, output->role, run.global_row, run.rows);
    const double scale = root_mean_square(wanted);
    Judge judge(inputs);
    for (std::int64_t row = 0; row < run.rows; row += judged_tile) {
      const auto first = static_cast<std::size_t>((run.local_row + row) * cols) * size_bytes(p.dtype);
      judge.compare({output->rank, output->role, run.local_row + row, smaller(judged_tile, run.rows - row),
                     static_cast<const std::byte*>(output->memory) + first},
                    wanted.data() + row * cols, scale);
    }
    const std::lock_guard lock(mutex);
    judge.merge_into(result);
  });
}

/// Upper bound of what lists of tokens' choices take: those of all panels' rows by expert, or of the terms of
/// as many panels of `rows` tokens as there are threads; and, one source at a time, those that find them.
std::int64_t list_bytes(const Problem& problem, std::int64_t rows) {
  constexpr std::int64_t found = 128, growth = 2;  // bytes of a choice; of a vector that grows
  if (!problem.traits().grouped) return 0;
  const std::int64_t holders = problem.traits().slices_experts() ? problem.world : 1;
  const std::int64_t each =
      problem.experts.topk * holders * static_cast<std::int64_t>(sizeof(ARows) + sizeof(Term::To));
  const std::int64_t tokens = problem.traits().combines() ? threads() * rows : problem.m * problem.sources();
  return growth * tokens * each + problem.m * problem.experts.topk * found;
}

}  // namespace

double tolerance(const Problem& problem) {
  constexpr double c = 4;
  if (problem.traits().is_collective() && !problem.traits().reduces()) return 0;  // bytes are moved unchanged
  // Of gradients each part is rounded, the sum of a rank's parts and the result. On GPUs cuDNN also rounds
  // the weights, and the gradients of the scores.
  if (problem.traits().backward)
    return 5 * epsilon(problem.dtype) +
           2 * c * (std::sqrt(static_cast<double>(problem.m)) + 16) * std::ldexp(1.0, -24);
  // Attention rounds its result once more, and its weights have the errors of the scores.
  // Parts of one are rounded too.
  const double attention =
      problem.traits().attends
          ? (problem.op == Op::allgather_attention ? 3 : 2) * epsilon(problem.dtype) +
                c * (std::sqrt(static_cast<double>(problem.m)) + 16) * std::ldexp(1.0, -24)
          : 0;
  if (problem.traits().shards_tokens()) return attention;
  // The first of two products is rounded once, element by element. Its accumulation errors pass the
  // activation, which has a slope of about one.
  const double first =
      problem.traits().chains()
          ? epsilon(problem.dtype) + c * std::sqrt(static_cast<double>(problem.inner)) * std::ldexp(1.0, -24)
          : 0;
  return (2 + problem.world) * epsilon(problem.dtype) +
         c * std::sqrt(static_cast<double>(problem.k)) * std::ldexp(1.0, -24) + attention + first;
}

double lse_tolerance(const Problem& problem) {
  constexpr double c = 4;
  return 2 * c * (std::sqrt(static_cast<double>(problem.m)) + 16) * std::ldexp(1.0, -24);
}

Check check(const Inputs& inputs, std::span<const Output> outputs) {
  const Problem& problem = inputs.problem();
  std::vector<int> ranks;
  bool any_rounds = false;
  for (const Output& output : outputs) {
    if (std::find(ranks.begin(), ranks.end(), output.rank) == ranks.end()) ranks.push_back(output.rank);
    any_rounds = any_rounds || (!is_number(output.role) && rounds(problem, output.role));
  }
  Check result;
  result.tolerance = inputs.exact() && !any_rounds ? 0 : tolerance(problem);

  openblas_set_num_threads(1);  // each thread here calls OpenBLAS itself
  if (problem.traits().backward) {
    check_gradients(inputs, outputs, result);
    return result;
  }
  for (const Output& output : outputs)
    if (is_number(output.role)) compare_numbers(inputs, output, result);
  const std::vector<Panel> panels = make_panels(inputs, ranks, panel_rows(problem));
  std::mutex mutex;
  for (auto panel = panels.begin(); panel != panels.end();) {
    // As many panels at a time as give every thread a term: terms of tokens name each of their choices.
    std::deque<Sum> sums;
    std::vector<std::pair<Sum*, const Term*>> tasks;
    for (; panel != panels.end() && std::ssize(tasks) < threads(); ++panel) {
      Sum& sum = sums.emplace_back(*panel);
      sum.terms = terms_of(inputs, *panel);
      for (const Term& term : sum.terms) tasks.emplace_back(&sum, &term);
      if (sum.terms.empty()) tasks.emplace_back(&sum, nullptr);  // no token has an expert
    }
    parallel_for(tasks.size(), [&](std::size_t i) {
      auto& [sum, term] = tasks[i];
      if (term != nullptr) {
        Product product = multiply(inputs, sum->panel, *term);
        const std::lock_guard lock(sum->mutex);
        // In any order: fp64 hardly differs.
        sum->product.add(problem, sum->panel, *term, std::move(product));
        if (++sum->added < sum->terms.size()) return;
      } else {
        sum->product.x.resize(static_cast<std::size_t>(sum->panel.rows * problem.n));
      }
      Judge judge(inputs);
      for (const Output& output : outputs)
        if (!is_number(output.role) &&
            std::ranges::find(sum->panel.readers, output.rank) != sum->panel.readers.end())
          compare(inputs, sum->panel, sum->product, output, judge);
      sum->product = {};
      const std::lock_guard lock(mutex);
      judge.merge_into(result);
    });
  }
  return result;
}

std::string oracle_library() {
  return openblas_get_config();
}

std::int64_t check_bytes(const Problem& problem) {
  const std::int64_t rows = panel_rows(problem);
  const std::int64_t block = smaller(512, problem.k);
  const std::int64_t product =
      static_cast<std::int64_t>(sizeof(double)) *
      (rows * (2 * problem.n + block +
               (problem.traits().chains() ? problem.b_cols() + problem.inner + 512 : 0)) +
       block * 512 + 8 * larger(problem.n, problem.b_cols()));
  if (problem.traits().backward) return threads() * gradient_bytes(problem, rows);
  const std::int64_t attended = problem.traits().attends ? attend_bytes(problem, rows) : 0;
  return threads() * (product + attended) + list_bytes(problem, rows);
}

}  // namespace shingle
