// shingle simulate: how long plans take on a machine, without running them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "shingle/api/trace.hpp"
#include "shingle/base/file.hpp"
#include "shingle/commands.hpp"
#include "shingle/jobs.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/rows.hpp"

namespace shingle::cli {
namespace {

/// The steps that follow each other without a pause and make the time; those that wait are left out.
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

  void add(const NamedProblem& named, const Plan& plan) {
    const Metrics metrics = measure(plan, machine_, flags_.options).value();
    rows_.push_back(
        {named, machine_.name, std::string(name(plan.mechanism)), params_json(plan), {}, metrics, {}, {}});
    if (!flags_.timeline && !flags_.critical_path && flags_.trace.empty() && flags_.svg.empty()) return;
    Simulated simulated = simulate(plan, machine_, flags_.options);
    if (flags_.critical_path) below_ += "\n" + path_text(plan, simulated);
    timelines_.push_back({describe(plan.problem), plan, std::move(simulated.spans)});
    if (flags_.timeline) below_ += "\n" + to_chart(timelines_.back(), 0);
  }
  void refuse(const NamedProblem& named, const std::string& mechanism, const std::string& reason) {
    rows_.push_back({named, machine_.name, mechanism, {}, {}, {}, {}, reason});
  }

  int print() const {
    const bool any = std::ranges::any_of(rows_, [](const Row& row) { return row.predicted.has_value(); });
    if (any && !flags_.trace.empty()) write_file_atomically(flags_.trace, to_chrome_trace(timelines_));
    if (any && !flags_.svg.empty()) write_file_atomically(flags_.svg, to_svg(timelines_));
    fmt::print("{}{}", flags_.format == Format::json ? to_json(rows_) : predicted_table(machine_, rows_),
               flags_.format == Format::json ? "" : below_);
    return any ? 0 : 1;
  }

 private:
  const SimulateFlags& flags_;
  const Machine& machine_;
  std::vector<Row> rows_;
  std::vector<Timeline> timelines_;
  std::string below_;
};

}  // namespace

int simulate(const SimulateFlags& flags, const Launch& launch) {
  if (!launch.speaks()) return 0;
  require_writable("--trace", flags.trace);
  require_writable("--svg", flags.svg);
  require_text("--timeline", flags.timeline, flags.format);
  require_text("--critical-path", flags.critical_path, flags.format);
  if (flags.machine.empty())
    throw InvalidArgument("simulate needs --machine: the profile of one, such as machines/h200x8.json");
  if (!flags.file.empty()) {
    const Plan plan = read_plan(flags.file);
    const Machine machine =
        machine_to_plan_for(flags.machine, plan.problem.world, flags.where.options(launch));
    Simulations all(flags, machine);
    all.add({"", plan.problem}, plan);
    return all.print();
  }
  const int ranks = flags.where.ranks(launch);
  const Machine machine = machine_to_plan_for(flags.machine, ranks, flags.where.options(launch));
  Simulations all(flags, machine);
  for (const NamedProblem& named : make_problems(flags.what, ranks))
    for (const Candidate& candidate : make_candidates(named.problem, flags.how, machine))
      if (candidate.plan)
        all.add(named, *candidate.plan);
      else
        all.refuse(named, candidate.mechanism, candidate.plan.reason());
  return all.print();
}

}  // namespace shingle::cli
