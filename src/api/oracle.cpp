#include "shingle/api/oracle.hpp"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <mutex>
#include <thread>

#include "api/attention_reference.hpp"
#include "api/reference.hpp"

namespace shingle {
namespace {

constexpr std::int64_t tile = 64;
constexpr std::int64_t panel_bytes = std::int64_t{64} << 20;

std::int64_t threads() {
  return larger(std::thread::hardware_concurrency(), 1);
}

/// Rows that keep a panel within its bytes and give every thread one to work on.
std::int64_t panel_rows(const Problem& problem) {
  const std::int64_t widest = larger(problem.n, problem.b_cols());
  const std::int64_t fit = panel_bytes / (widest * static_cast<std::int64_t>(sizeof(double)));
  return std::max<std::int64_t>(std::min(fit, ceil_div(problem.m, threads())), 16);
}

bool rounds(const Problem& problem, Role role) {
  const Activation activation = problem.epilogue.activation;
  return problem.attends() || (activation != Activation::none && activation != Activation::relu) ||
         (role == Role::out && problem.norm.enabled);
}

/// Squared sums of one tile.
struct Squares {
  double error = 0;
  double reference = 0;
};

/// Compares rows of one output, tile by tile, and keeps the worst.
class Comparison {
 public:
  explicit Comparison(const Inputs& inputs) : inputs_(inputs) {}

  /// `rows` rows of the output from `local` on, which are rows of the product from `x` on.
  void rows(const Output& output, Finish& finish, std::int64_t local, std::int64_t rows, const double* x,
            double scale) {
    const Problem& p = inputs_.problem();
    const std::int64_t cols = p.out_cols();
    std::vector<float> got(static_cast<std::size_t>(cols));
    std::vector<Squares> tiles(static_cast<std::size_t>(ceil_div(cols, tile)));
    const bool normalised = output.role == Role::out && p.norm.enabled;
    const double size = p.result_epilogue().activation == Activation::swiglu ? scale * scale : scale;
    const double weight = normalised ? finish.norm_scale() : 1;
    double least = 0;  // sum over rows of the square of what an error is compared with at least
    for (std::int64_t i = 0; i < rows; ++i) {
      const RowResult& result = finish(x + i * p.n, local + i);
      const std::vector<double>& reference = output.role == Role::sum ? result.sum : result.out;
      const std::size_t offset = static_cast<std::size_t>((local + i) * cols) * size_bytes(p.dtype);
      widen(p.dtype, static_cast<const std::byte*>(output.memory) + offset, got.data(), got.size());
      // A norm makes the error of a row of small elements as much larger as the elements.
      const double row_size = normalised ? weight * std::max(1.0, size * result.factor) : size;
      least += row_size * row_size;
      for (std::size_t j = 0; j < got.size(); ++j) {
        const double error = static_cast<double>(got[j]) - reference[j];
        Squares& sums = tiles[j / static_cast<std::size_t>(tile)];
        sums.error += error * error;
        sums.reference += reference[j] * reference[j];
      }
    }
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(tiles.size()); ++t) {
      const std::int64_t width = smaller(tile, cols - t * tile);
      judge(output, {local, rows, t * tile, width}, tiles[static_cast<std::size_t>(t)],
            std::sqrt(least * static_cast<double>(width)));
    }
  }

  void merge_into(Check& check) const {
    check.passed = check.passed && passed_;
    if (!(worst_ > check.max_error)) return;
    check.max_error = worst_;
    check.worst = where_;
  }

 private:
  void judge(const Output& output, const Area& area, const Squares& sums, double least) {
    double error = 0;
    if (!std::isfinite(sums.error)) {
      error = std::numeric_limits<double>::infinity();
    } else if (sums.error > 0) {
      error = std::sqrt(sums.error) /
              std::max(std::sqrt(sums.reference), least);  // x/0 is infinite, and so it should be
    }
    const double bound =
        inputs_.exact() && !rounds(inputs_.problem(), output.role) ? 0 : tolerance(inputs_.problem());
    passed_ = passed_ && error <= bound;
    if (!(error > worst_)) return;
    worst_ = error;
    where_ = fmt::format("{} of rank {}, rows {}..{}, columns {}..{}", name(output.role), output.rank,
                         area.row, area.row + area.rows - 1, area.col, area.col + area.cols - 1);
  }

  const Inputs& inputs_;
  bool passed_ = true;
  double worst_ = 0;
  std::string where_;
};

/// Compares all rows of the panel that an output holds.
void compare(const Inputs& inputs, const Panel& panel, const Product& product, const Output& output,
             Comparison& comparison) {
  Finish finish(inputs, output.rank);
  const std::int64_t n = inputs.problem().n;
  for (const GlobalRun& run : inputs.problem().out_runs(output.rank)) {
    const std::int64_t end = smaller(run.global_row + run.rows, panel.row + panel.rows);
    for (std::int64_t row = larger(run.global_row, panel.row); row < end; row += tile)
      comparison.rows(output, finish, run.local_row + row - run.global_row, smaller(tile, end - row),
                      product.x.data() + (row - panel.row) * n, product.scale);
  }
}

}  // namespace

double tolerance(const Problem& problem) {
  constexpr double c = 4;
  if (problem.is_collective() && !problem.reduces()) return 0;  // bytes are moved as they are
  // Attention rounds its result once more, and its weights have the errors of its scores.
  const double attention =
      problem.attends() ? 2 * epsilon(problem.dtype) +
                              c * (std::sqrt(static_cast<double>(problem.m)) + 16) * std::ldexp(1.0, -24)
                        : 0;
  if (problem.exchanges_heads()) return attention;
  // The first of two products is rounded once, element by element, and its accumulation errors pass the
  // activation, whose slope is about one.
  const double first =
      problem.chains()
          ? epsilon(problem.dtype) + c * std::sqrt(static_cast<double>(problem.inner)) * std::ldexp(1.0, -24)
          : 0;
  return (2 + problem.world) * epsilon(problem.dtype) +
         c * std::sqrt(static_cast<double>(problem.k)) * std::ldexp(1.0, -24) + attention + first;
}

Check check(const Inputs& inputs, std::span<const Output> outputs) {
  const Problem& problem = inputs.problem();
  std::vector<int> ranks;
  bool any_rounds = false;
  for (const Output& output : outputs) {
    if (std::find(ranks.begin(), ranks.end(), output.rank) == ranks.end()) ranks.push_back(output.rank);
    any_rounds = any_rounds || rounds(problem, output.role);
  }
  Check result;
  result.tolerance = inputs.exact() && !any_rounds ? 0 : tolerance(problem);

  openblas_set_num_threads(1);  // every thread here calls it for itself
  const std::vector<Panel> panels = make_panels(problem, ranks, panel_rows(problem));
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  const auto work = [&] {
    Comparison comparison(inputs);
    for (std::size_t i; (i = next++) < panels.size();) {
      const Product product = multiply(inputs, panels[i]);
      for (const Output& output : outputs)
        if (std::find(panels[i].readers.begin(), panels[i].readers.end(), output.rank) !=
            panels[i].readers.end())
          compare(inputs, panels[i], product, output, comparison);
    }
    const std::lock_guard lock(mutex);
    comparison.merge_into(result);
  };
  std::vector<std::future<void>> team;
  for (std::int64_t t = 1; t < smaller(threads(), static_cast<std::int64_t>(panels.size())); ++t)
    team.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& member : team) member.get();
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
      (rows * (problem.n + block + (problem.chains() ? problem.b_cols() + problem.inner + 512 : 0)) +
       block * 512 + 8 * larger(problem.n, problem.b_cols()));
  return threads() * (product + (problem.attends() ? attend_bytes(problem, rows) : 0));
}

}  // namespace shingle
