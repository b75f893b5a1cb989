// shingle bench: measures many shapes, mechanisms and params beside the sequential plan, in a quotable way
// (docs/reference/benchmarks.md).
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/file.hpp"
#include "base/parallel.hpp"
#include "shingle/bench/suite.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/page.hpp"
#include "shingle/common/pattern.hpp"
#include "shingle/common/surroundings.hpp"
#include "shingle/run/execute.hpp"
#include "shingle/version.hpp"

namespace shingle::cli {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int sustained_epochs = 10;
constexpr double single_shot_idle_us = 40e3;  // after this, a GPU's clocks are those of a cool one

std::vector<NamedProblem> suite_problems(const BenchFlags& flags, int ranks) {
  std::vector<NamedProblem> problems =
      read_suite(flags.suite_file.empty() ? shipped_suite() : flags.suite_file, ranks,
                 flags.what.dtype.value_or(DType::bf16));
  std::erase_if(problems, [&](const NamedProblem& named) {
    const Problem& p = named.problem;
    return (flags.what.op && p.op != *flags.what.op) || p.m < flags.begin ||
           (flags.end > 0 && p.m > flags.end);
  });
  return problems;
}

/// One problem for each M of the flags.
std::vector<NamedProblem> swept_problems(const BenchFlags& flags, int ranks) {
  if (flags.begin == 0) {
    if (flags.end > 0) throw InvalidArgument("--end needs --begin");
    return make_problems(flags.what, ranks);
  }
  const std::int64_t end = flags.end > 0 ? flags.end : flags.begin;
  if (end < flags.begin)
    throw InvalidArgument(fmt::format("--end {} is below --begin {}", flags.end, flags.begin));
  if (flags.what.m != 0 || flags.what.tokens != 0)
    throw InvalidArgument("--begin sets M or the tokens: leave out --m and --tokens");
  std::vector<NamedProblem> problems;
  for (std::int64_t m = flags.begin; m <= end; m *= flags.factor) {
    ProblemFlags what = flags.what;
    (what.model.empty() ? what.m : what.tokens) = m;
    std::ranges::move(make_problems(what, ranks), std::back_inserter(problems));
  }
  return problems;
}

std::vector<NamedProblem> problems_of(const BenchFlags& flags, int ranks) {
  std::vector<NamedProblem> problems =
      flags.suite ? suite_problems(flags, ranks) : swept_problems(flags, ranks);
  try {
    const Pattern only(flags.only);
    std::erase_if(problems, [&](const NamedProblem& named) { return !only.in(describe(named)); });
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--only: {}", error.what()));
  }
  if (problems.empty()) throw InvalidArgument("no shape is left to measure: widen --only, --begin and --end");
  return problems;
}

std::vector<Shape> plan_shapes(const std::vector<NamedProblem>& problems, const Target& target,
                               const BenchFlags& flags, const WorldOptions& where, Progress& progress) {
  ShapeOptions options{.contenders = with_comm_workers(flags.contenders, flags.comm_workers),
                       .confirm = flags.confirm,
                       .refuses = refusals(where)};
  std::optional<TuneCache> cache;
  if (const auto folder = flags.cache.empty() ? std::nullopt : folder_to_keep(flags.cache))
    options.cache = &cache.emplace(target.machine, *folder);
  std::vector<Shape> shapes(problems.size());
  progress.expect(problems.size());
  progress.now("planning");
  parallel_for(problems.size(), [&](std::size_t i) {
    shapes[i] = plan_shape(problems[i], target, options);
    progress.advance();
  });
  return shapes;
}

class Bench {
 public:
  Bench(const BenchFlags& flags, const ProcessLaunch& launch, int ranks)
      : flags_(flags), launch_(launch), ranks_(ranks), where_(flags.where.options(launch)) {
    options_ = {.measure = {.repeat = flags.iters, .warmup = flags.warmup},
                .checked = flags.checked,
                .where = flags.where,
                .launch = launch,
                .backend = std::string(where_.backend),
                .seed = flags.what.seed};
    options_.measure.idle_us = flags.idle_us.value_or(where_.backend == "cuda" ? single_shot_idle_us : 0);
    if (flags.sustained) options_.measure.epochs = sustained_epochs, options_.measure.idle_us = 0;
  }

  int run() {
    const std::vector<NamedProblem> problems = problems_of(flags_, ranks_);
    const bool predicts = !flags_.machine.empty() || where_.backend == "cuda" ||
                          std::ranges::any_of(flags_.contenders, &Contender::automatic);
    const Target target = target_to_run_on(flags_.machine, predicts, ranks_, where_, launch_);
    auto progress = std::make_unique<Progress>(launch_.speaks());
    shapes_ = plan_shapes(problems, target, flags_, where_, *progress);
    planning_s_ = elapsed_us() * 1e-6;
    for (const NamedProblem& named : problems)
      where_.timeout_us = std::max(where_.timeout_us, run_timeout_us(named.problem, flags_.where));
    if (text()) progress->print(fmt::format("{}\n{}", head(), bench_head(table_)));
    measure_all(*progress);
    progress.reset();
    if (launch_.speaks()) finish();
    return exit_code();
  }

 private:
  bool text() const { return launch_.speaks() && flags_.format == Format::text; }
  double elapsed_us() const {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin_).count();
  }

  void measure_all(Progress& progress) {
    std::unique_ptr<World> world = make_world(ranks_, where_);
    std::size_t rows = 0;
    for (const Shape& shape : shapes_) rows += shape.entries.size();
    progress.expect(rows);
    for (const Shape& shape : shapes_) {
      // All processes must stop at the same shape.
      if (flags_.budget_us > 0 && world->all_max({elapsed_us()})[0] > flags_.budget_us) return;
      try {
        bench_shape(*world, shape, options_, progress, [&](BenchRow row) { add(std::move(row), progress); });
      } catch (const BrokenWorld& failure) {
        stopped_ = failure.what();
        if (where_.backend != "host") return;
        world.reset();
        world = make_world(ranks_, where_);
        stopped_.clear();
      }
      ++done_;
      if (launch_.speaks() && !flags_.out.empty()) write_file_atomically(flags_.out, record().dump(1) + "\n");
    }
  }

  void add(BenchRow row, Progress& progress) {
    progress.advance();
    if (text()) {
      progress.print(bench_line(table_, row));
      if (!row.row.reason.empty()) progress.print(fmt::format("  {}: {}\n", row.contender, row.row.reason));
    }
    rows_.push_back(std::move(row));
  }

  void finish() {
    if (!flags_.out.empty()) write_file_atomically(flags_.out, record().dump(1) + "\n");
    if (!flags_.html.empty()) write_file_atomically(flags_.html, to_html(page()));
    if (flags_.format == Format::json) {
      fmt::print("{}\n", record().dump(1));
      return;
    }
    const std::vector<ClassSummary> classes = summarize(rows_);
    if (!classes.empty()) fmt::print("\n{}", aligned(summary_lines(classes), {.words = summary_words}));
    for (const std::string& note : notes()) fmt::print("{}\n", note);
  }

  std::string head() const {
    const MeasureOptions& m = options_.measure;
    return fmt::format(
        "{} ranks on {}, {} pairs of {}, {} shapes; planned in {:.1f} s", ranks_, where_.backend, m.repeat,
        flags_.sustained ? fmt::format("{} runs back to back", m.epochs)
        : m.idle_us > 0  ? fmt::format("single shots, {} idle before each", format_us(m.idle_us))
                         : std::string("single shots"),
        shapes_.size(), planning_s_);
  }

  /// Notes below the tables, one per line.
  std::vector<std::string> notes() const {
    std::vector<std::string> lines;
    if (std::ranges::any_of(rows_, [](const BenchRow& row) { return noisy(row); }))
      lines.emplace_back(measured_noise);
    if (const auto errors = summarize_predictions(rows_)) lines.push_back(to_text(*errors));
    double setup_s = 0;
    for (const BenchRow& row : rows_) setup_s += row.setup_s;
    lines.push_back(fmt::format("{:.1f} s in all: {:.1f} s planning, {:.1f} s set-up and first checks",
                                elapsed_us() * 1e-6, planning_s_, setup_s));
    for (const std::string& note : params_notes()) lines.push_back(note);
    if (!stopped_.empty()) lines.push_back("stopped after a failure that broke the world: " + stopped_);
    for (const std::string& shape : left()) lines.push_back("left: " + shape);
    return lines;
  }

  /// Sources of the contenders' params, for all shapes together.
  std::vector<std::string> params_notes() const {
    std::vector<std::string> lines;
    for (const BenchRow& row : rows_) {
      std::string line = fmt::format("{}: {}", row.contender, row.row.note);
      if (!row.row.note.empty() && std::ranges::find(lines, line) == lines.end())
        lines.push_back(std::move(line));
    }
    return lines;
  }

  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (std::size_t i = done_; i < shapes_.size(); ++i) names.push_back(describe(shapes_[i].named));
    return names;
  }

  ordered_json record() const {
    ordered_json record{{"command", flags_.command},
                        {"commit", commit()},
                        {"version", SHINGLE_VERSION},
                        {"machine", surroundings_},
                        {"backend", where_.backend},
                        {"world", ranks_},
                        {"mode", flags_.sustained ? "sustained" : "single"},
                        {"idle_us", options_.measure.idle_us},
                        {"epochs", options_.measure.epochs},
                        {"planning_s", planning_s_},
                        {"elapsed_s", elapsed_us() * 1e-6}};
    record["rows"] = record["summary"] = record["left"] = ordered_json::array();
    for (const BenchRow& row : rows_) record["rows"].push_back(json_of(row));
    for (const ClassSummary& sum : summarize(rows_)) record["summary"].push_back(json_of(sum));
    for (const std::string& shape : left()) record["left"].push_back(shape);
    const auto errors = summarize_predictions(rows_);
    record["prediction_error"] = errors ? json_of(*errors) : ordered_json();
    record["stopped"] = stopped_.empty() ? ordered_json() : ordered_json(stopped_);
    return record;
  }

  Report page() const {
    std::vector<std::string> facts{head()};
    std::ranges::move(notes(), std::back_inserter(facts));
    Report page = make_page("Benchmark", std::move(facts));
    const auto add_table = [&](const char* title, std::vector<Line> lines, std::size_t words) {
      ReportTable table{.title = title, .head = std::move(lines.at(0)), .words = words};
      table.rows.assign(std::make_move_iterator(lines.begin() + 1), std::make_move_iterator(lines.end()));
      page.tables.push_back(std::move(table));
    };
    add_table("Summary", summary_lines(summarize(rows_)), summary_words);
    add_table("Results", bench_lines(rows_), word_columns);
    std::vector<SizedSpeedup> sized;
    for (const BenchRow& row : rows_) {
      if (!row.counts()) continue;
      const Problem& p = row.row.named.problem();
      const Measurement& time = *row.row.time;
      if (row.predicted)
        page.predictions.push_back({fmt::format("{}, {}", describe(row.row.named), row.contender),
                                    row.predicted->us, time.overlapped_us});
      if (row.contender == name(Mechanism::sequential)) continue;
      sized.push_back(
          {fmt::format("{}, {}, {} ranks, {}", name(p.op), row.contender, p.world, name(p.dtype)),
           {static_cast<double>(p.m) * static_cast<double>(p.n), static_cast<double>(p.k), time.speedup()}});
    }
    page.heat_maps = heat_maps(sized);
    return page;
  }

  int exit_code() const {
    const auto failed = [](const BenchRow& row) { return row.planned() && !row.counts(); };
    const bool any = std::ranges::any_of(rows_, &BenchRow::counts);
    return !any || std::ranges::any_of(rows_, failed) ? 1 : 0;
  }

  static constexpr std::size_t summary_words = 2;

  const BenchFlags& flags_;
  const ProcessLaunch& launch_;
  const int ranks_;
  WorldOptions where_;
  BenchOptions options_;
  const Clock::time_point begin_ = Clock::now();
  const ordered_json surroundings_ = surroundings_json();
  double planning_s_ = 0;
  std::vector<Shape> shapes_;
  Table table_ = bench_table();
  std::vector<BenchRow> rows_;
  std::size_t done_ = 0;  ///< shapes
  std::string stopped_;   ///< why the remaining shapes were not measured
};

}  // namespace

int bench(const BenchFlags& flags, const ProcessLaunch& launch) {
  require_writable({{"--out", flags.out}, {"--html", flags.html}});
  return Bench(flags, launch, flags.where.ranks(launch)).run();
}

}  // namespace shingle::cli
