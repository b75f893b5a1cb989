// shingle verify: proves plans of Shingle's planners, or plans read from JSON.
#include "shingle/verify/verify.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "shingle/commands.hpp"
#include "shingle/common/jobs.hpp"

namespace shingle::cli {
namespace {

/// How far apart ranks may be in consecutive runs.
std::string skew_text(std::int32_t skew) {
  if (skew < 0) return "a rank may run any number of epochs ahead of another that never notifies it";
  return fmt::format("a rank is at most {} epoch{} ahead of another", skew, skew == 1 ? "" : "s");
}

/// Proves one plan and prints what was proven.
bool prove(const Plan& plan, bool in_context) {
  const auto start = std::chrono::steady_clock::now();
  const Proof proof = shingle::verify(plan, in_context ? Setting::context : Setting::alone);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  const std::string what = fmt::format("{} plan for {}", name(plan.mechanism), describe(plan.work));
  if (!proof) {
    fmt::print("not proven: {}\n  {}: {}\n", what, proof.rule, proof.failure);
    return false;
  }
  fmt::print(
      "proven: {}\n  well-formed; always finishes, also behind a single hardware queue; no race; every "
      "element of the "
      "output is written as the operator asks\n  {} steps and runs of tiles in {} epochs, {} accesses, in "
      "{}\n  {}\n",
      what, proof.segments, proof.epochs, proof.accesses, format_us(took.count()), skew_text(proof.skew));
  if (in_context)
    fmt::print(
        "  calls of any plans that are proven so may come before and after, on the same staging memory\n");
  return true;
}

}  // namespace

int verify(const VerifyFlags& flags, const ProcessLaunch& launch) {
  if (!launch.speaks()) return 0;
  if (!flags.file.empty()) return prove(read_plan(flags.file), flags.in_context) ? 0 : 1;
  const int ranks = flags.where.ranks(launch);
  const WorldOptions here = flags.where.options(launch);
  const Target target = flags.how.automatic ? target_to_tune_for(flags.machine, ranks, here, launch)
                                            : target_to_plan_for(flags.machine, ranks, here, launch);
  bool all = true, any = false;
  for (const NamedProblem& named : make_problems(flags.what, ranks))
    for (const Candidate& candidate : make_candidates(named.problem, flags.how, target)) {
      if (candidate.plan) {
        all = prove(*candidate.plan, flags.in_context) && all;
        any = true;
      } else {
        fmt::print("no {} plan for {}: {}\n", candidate.mechanism, describe(named), candidate.plan.reason());
      }
    }
  return all && any ? 0 : 1;
}

}  // namespace shingle::cli
