// shingle simulate: predicts how long plans take on a machine, without running them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "base/file.hpp"
#include "report/trace.hpp"
#include "shingle/bench/sweep.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/jobs.hpp"
#include "shingle/common/page.hpp"
#include "shingle/common/rows.hpp"
#include "shingle/common/table.hpp"
#include "shingle/plan/print.hpp"

namespace shingle::cli {
namespace {

/// The consecutive steps that determine the makespan, without waits and notifies.
std::string path_text(const Plan& plan, const Simulated& simulated) {
  std::string text = "critical path\n";
  for (const std::size_t i : simulated.critical_path) {
    const Span& span = simulated.spans[i];
    const Lane& lane =
        plan.ranks[static_cast<std::size_t>(span.rank)].lanes[static_cast<std::size_t>(span.lane)];
    const Step& step = lane.steps[static_cast<std::size_t>(span.step)];
    if (std::holds_alternative<Await>(step) || std::holds_alternative<Notify>(step)) continue;
    text += fmt::format("  {:>10} {:>10}  rank {}, {}: {}{}\n", format_us(span.begin_us),
                        format_us(span.end_us - span.begin_us), span.rank, lane.name, name(step),
                        span.group < 0 ? "" : fmt::format(", group {}", span.group));
  }
  return text;
}

class Simulations {
 public:
  Simulations(const SimulateFlags& flags, const Machine& machine) : flags_(flags), machine_(machine) {}

  void add(const NamedWork& named, const Candidate& candidate) {
    rows_.push_back(predicted_row(named, candidate, machine_, flags_.options));
    if (candidate.plan) show(named, *candidate.plan);
  }

  int print() const {
    const bool any = any_predicted(rows_);
    if (any && !flags_.trace.empty()) write_file_atomically(flags_.trace, to_chrome_trace(timelines_));
    if (any && !flags_.svg.empty()) write_file_atomically(flags_.svg, to_svg(timelines_));
    if (any && !flags_.html.empty()) write_file_atomically(flags_.html, to_html(page()));
    fmt::print("{}{}",
               flags_.format == Format::json ? simulated_json(rows_) : predicted_table(machine_, rows_),
               flags_.format == Format::json ? "" : below_);
    if (any && flags_.timeline) fmt::print("\n{}", chart_legend());
    return any ? 0 : 1;
  }

 private:
  /// Adds the requested output beside the row.
  void show(const NamedWork& named, const Plan& plan) {
    if (!flags_.html.empty()) add_timelines(named, plan);
    if (!flags_.timeline && !flags_.critical_path && flags_.trace.empty() && flags_.svg.empty()) return;
    Simulated simulated = simulate(plan, machine_, flags_.options);
    if (flags_.critical_path) below_ += "\n" + path_text(plan, simulated);
    timelines_.push_back({describe(plan.work), plan, std::move(simulated.spans), 0.0});
    if (flags_.timeline) below_ += "\n" + to_chart(timelines_.back(), 0, page_width());
  }

  /// Adds the timelines of the problem's sequential plan and, below it, of the plan.
  void add_timelines(const NamedWork& named, const Plan& plan) {
    std::vector<Timeline> timelines;
    const auto show = [&](const Plan& shown) {
      timelines.push_back(
          {std::string(name(shown.mechanism)), shown, simulate(shown, machine_, flags_.options).spans, 0.0});
    };
    if (plan.mechanism != Mechanism::sequential)
      show(std::visit([&](const auto& work) { return make_plan(work, machine_, SequentialParams{}); },
                      plan.work)
               .value());
    show(plan);
    cli::add_timelines(fmt::format("{}, {}", describe(named), name(plan.mechanism)), std::move(timelines),
                       figures_);
  }

  Report page() const {
    Report page = figures_;
    page.title = fmt::format("Predicted for {}", machine_.name);
    add_rows(rows_, predicted_lines(rows_), page);
    page.curves = machine_.curves;
    return page;
  }

  const SimulateFlags& flags_;
  const Machine& machine_;
  std::vector<Row> rows_;
  std::vector<Timeline> timelines_;
  Report figures_ = make_page("", {});
  std::string below_;
};

}  // namespace

int simulate(const SimulateFlags& flags, const ProcessLaunch& launch) {
  if (!launch.speaks()) return 0;
  require_writable({{"--trace", flags.trace}, {"--svg", flags.svg}, {"--html", flags.html}});
  require_text("--timeline", flags.timeline, flags.format);
  require_text("--critical-path", flags.critical_path, flags.format);
  if (!flags.file.empty()) {
    const Plan plan = read_plan(flags.file);
    const Target target =
        target_to_tune_for(flags.machine, plan.world(), flags.where.options(launch), launch);
    Simulations all(flags, target.machine);
    all.add(NamedWork(plan.work), {std::string(name(plan.mechanism)), plan});
    return all.print();
  }
  const int ranks = flags.where.ranks(launch);
  std::vector<NamedProblem> problems;  // made first: a machine that is not named is measured
  for (const ProblemFlags& what : swept(flags.what, flags.sweeps))
    std::ranges::move(make_problems(what, ranks), std::back_inserter(problems));
  const Target target = target_to_tune_for(flags.machine, ranks, flags.where.options(launch), launch);
  Simulations all(flags, target.machine);
  for (const NamedProblem& named : problems)
    for (const Candidate& candidate : make_candidates(named.problem, flags.how, target))
      all.add(named, candidate);
  return all.print();
}

}  // namespace shingle::cli
