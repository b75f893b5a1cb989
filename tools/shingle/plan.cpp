// shingle plan: prints plans, or why there are none.
#include <fmt/format.h>

#include <cstdio>

#include "shingle/api/trace.hpp"
#include "shingle/base/file.hpp"
#include "shingle/commands.hpp"
#include "shingle/jobs.hpp"

namespace shingle::cli {

int plan(const PlanCommandFlags& flags, const Launch& launch) {
  require_writable("--out", flags.out);
  require_writable("--trace", flags.trace);
  require_writable("--svg", flags.svg);
  require_text("--rank", flags.rank >= 0, flags.format);
  const int ranks = flags.where.ranks(launch);
  if (flags.rank >= ranks) throw InvalidArgument(fmt::format("--rank: there are only {} ranks", ranks));
  const WorldOptions here = flags.where.options(launch);
  const Machine machine = flags.how.automatic ? machine_to_tune_for(flags.machine, ranks, here, launch)
                                              : machine_to_plan_for(flags.machine, ranks, here);
  std::string text;
  std::vector<Timeline> timelines;
  bool any = false;
  for (const NamedProblem& named : make_problems(flags.what, ranks))
    for (const Candidate& candidate : make_candidates(named.problem, flags.how, machine)) {
      if (!candidate.plan) {
        if (launch.speaks())
          fmt::print(stderr, "shingle: no {} plan for {}: {}\n", candidate.mechanism, describe(named),
                     candidate.plan.reason());
        continue;
      }
      any = true;
      text += flags.format == Format::json ? to_json(*candidate.plan) + "\n"
                                           : to_text(*candidate.plan, flags.rank) + "\n";
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
