// shingle plan: prints plans, or why there are none; for another machine, predicted times.
#include <fmt/format.h>

#include <cstdio>

#include "base/file.hpp"
#include "lower/launch_program.hpp"
#include "report/trace.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/rows.hpp"

namespace shingle::cli {
namespace {

/// True if predicted times are printed: for another machine, unless a flag asks for the plans themselves.
bool predicts(const PlanCommandFlags& flags) {
  const bool of_plans = flags.steps || flags.lowered || flags.rank >= 0 || !flags.out.empty() ||
                        !flags.trace.empty() || !flags.svg.empty();
  return !flags.machine.empty() && !of_plans;
}

int predict(const PlanCommandFlags& flags, int ranks, const Target& target) {
  PlanFlags how = flags.how;
  if (!how.asked) how.automatic = true;
  std::vector<Row> rows;
  for (const NamedProblem& named : make_problems(flags.what, ranks))
    for (const Candidate& candidate : make_candidates(named.problem, how, target))
      rows.push_back(predicted_row(named, candidate, target.machine));
  fmt::print("{}", flags.format == Format::json ? to_json(rows) : planned_table(target.machine, rows));
  return any_predicted(rows) ? 0 : 1;
}

std::string shown(const Plan& plan, const PlanCommandFlags& flags) {
  const bool json = flags.format == Format::json;
  if (!flags.lowered) return json ? to_json(plan) : to_text(plan, flags.rank);
  const LaunchProgram program = lower(plan);
  return json ? to_json(program) : to_text(plan, program);
}

}  // namespace

int plan(const PlanCommandFlags& flags, const ProcessLaunch& launch) {
  require_writable("--out", flags.out);
  require_writable("--trace", flags.trace);
  require_writable("--svg", flags.svg);
  require_text("--rank", flags.rank >= 0, flags.format);
  const int ranks = flags.where.ranks(launch);
  if (flags.rank >= ranks)
    throw InvalidArgument(fmt::format("--rank {} is outside [0, {}]", flags.rank, ranks - 1));
  const WorldOptions here = flags.where.options(launch);
  const Target target = flags.how.automatic || (predicts(flags) && !flags.how.asked)
                            ? target_to_tune_for(flags.machine, ranks, here, launch)
                            : target_to_plan_for(flags.machine, ranks, here, launch);
  if (predicts(flags)) return launch.speaks() ? predict(flags, ranks, target) : 0;
  std::string text;
  std::vector<Timeline> timelines;
  bool any = false;
  for (const NamedProblem& named : make_problems(flags.what, ranks))
    for (const Candidate& candidate : make_candidates(named.problem, flags.how, target)) {
      if (!candidate.plan) {
        if (launch.speaks())
          fmt::print(stderr, "shingle: no {} plan for {}: {}\n", candidate.mechanism, describe(named),
                     candidate.plan.reason());
        continue;
      }
      any = true;
      text += shown(*candidate.plan, flags) + "\n";
      if (!flags.trace.empty() || !flags.svg.empty()) timelines.push_back(schematic(*candidate.plan));
    }
  if (!launch.speaks()) return any ? 0 : 1;
  if (any && !flags.trace.empty()) write_file_atomically(flags.trace, to_chrome_trace(timelines));
  if (any && !flags.svg.empty()) write_file_atomically(flags.svg, to_svg(timelines));
  if (any && !flags.out.empty()) {
    write_file_atomically(flags.out, text);
  } else {
    fmt::print("{}", text);
  }
  return any ? 0 : 1;
}

}  // namespace shingle::cli
