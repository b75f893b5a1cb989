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

/// The plans that a command prints and draws.
class Shown {
 public:
  explicit Shown(const PlanCommandFlags& flags) : flags_(flags) {}

  void add(const Plan& plan) {
    any_ = true;
    text_ += text_of(plan) + "\n";
    if (!flags_.trace.empty() || !flags_.svg.empty()) timelines_.push_back(schematic(plan));
  }

  bool any() const { return any_; }

  void write() const {
    if (!flags_.trace.empty()) write_file_atomically(flags_.trace, to_chrome_trace(timelines_));
    if (!flags_.svg.empty()) write_file_atomically(flags_.svg, to_svg(timelines_));
    if (!flags_.out.empty()) {
      write_file_atomically(flags_.out, text_);
    } else {
      fmt::print("{}", text_);
    }
  }

 private:
  std::string text_of(const Plan& plan) const {
    const bool json = flags_.format == Format::json;
    if (!flags_.lowered) return json ? to_json(plan) : to_text(plan, flags_.rank);
    const LaunchProgram program = lower(plan);
    return json ? to_json(program) : to_text(plan, program);
  }

  const PlanCommandFlags& flags_;
  std::string text_;
  std::vector<Timeline> timelines_;
  bool any_ = false;
};

void require_rank(int rank, int ranks) {
  if (rank >= ranks) throw InvalidArgument(fmt::format("--rank {} is outside [0, {}]", rank, ranks - 1));
}

/// Shows the plan of a file.
int show(const PlanCommandFlags& flags) {
  const Plan plan = read_plan(flags.file);
  require_rank(flags.rank, plan.world());
  Shown shown(flags);
  shown.add(plan);
  shown.write();
  return 0;
}

}  // namespace

int plan(const PlanCommandFlags& flags, const ProcessLaunch& launch) {
  require_writable({{"--out", flags.out}, {"--trace", flags.trace}, {"--svg", flags.svg}});
  require_text("--rank", flags.rank >= 0, flags.format);
  if (!flags.file.empty()) return launch.speaks() ? show(flags) : 0;
  const int ranks = flags.where.ranks(launch);
  require_rank(flags.rank, ranks);
  const WorldOptions here = flags.where.options(launch);
  const Target target = flags.how.automatic || (predicts(flags) && !flags.how.asked)
                            ? target_to_tune_for(flags.machine, ranks, here, launch)
                            : target_to_plan_for(flags.machine, ranks, here, launch);
  if (predicts(flags)) return launch.speaks() ? predict(flags, ranks, target) : 0;
  Shown shown(flags);
  for (const NamedProblem& named : make_problems(flags.what, ranks))
    for (const Candidate& candidate : make_candidates(named.problem, flags.how, target)) {
      if (!candidate.plan) {
        if (launch.speaks())
          fmt::print(stderr, "shingle: no {} plan for {}: {}\n", candidate.mechanism, describe(named),
                     candidate.plan.reason());
        continue;
      }
      shown.add(*candidate.plan);
    }
  if (launch.speaks() && shown.any()) shown.write();
  return shown.any() ? 0 : 1;
}

}  // namespace shingle::cli
