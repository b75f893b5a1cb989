// shingle verify: proves plans of Shingle's planners, or plans read from JSON.
#include "shingle/verify/verify.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "shingle/commands.hpp"
#include "shingle/common/jobs.hpp"

namespace shingle::cli {
namespace {

using nlohmann::ordered_json;

/// How far apart ranks may be in consecutive runs.
std::string skew_text(std::int32_t skew) {
  if (skew < 0) return "a rank may run any number of epochs ahead of another that never notifies it";
  return fmt::format("a rank is at most {} epoch{} ahead of another", skew, skew == 1 ? "" : "s");
}

/// What every proof claims.
constexpr std::array claims{
    "well-formed",
    "always finishes, also behind a single hardware queue",
    "no race",
    "every element of the output is written as the operator asks",
};
constexpr const char* claim_in_context =
    "calls of any plans that are proven so may come before and after, on the same staging memory";

/// Proves plans, and prints what was proven.
class Proofs {
 public:
  explicit Proofs(const VerifyFlags& flags) : flags_(flags) {}

  void add(const Plan& plan) {
    const auto start = std::chrono::steady_clock::now();
    const Proof proof = shingle::verify(plan, flags_.in_context ? Setting::context : Setting::alone);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    any_ = true;
    all_ = all_ && proof.ok;
    if (flags_.format == Format::json) {
      add_json(plan, proof, took.count());
    } else {
      print_text(plan, proof, took.count());
    }
  }

  /// An operator that the mechanism does not serve.
  void add(const NamedProblem& named, const Candidate& candidate) {
    if (flags_.format == Format::json) {
      json_.push_back(head(named.problem, candidate.mechanism));
      json_.back()["proven"] = false;
      json_.back()["reason"] = candidate.plan.reason();
    } else {
      fmt::print("no {} plan for {}: {}\n", candidate.mechanism, describe(named), candidate.plan.reason());
    }
  }

  /// Prints the JSON. Returns the exit code.
  int finish() const {
    if (flags_.format == Format::json) fmt::print("{}\n", json_.dump(1));
    return all_ && any_ ? 0 : 1;
  }

 private:
  static ordered_json head(const Work& work, std::string_view mechanism) {
    return {{"work", describe(work)}, {"world", world_of(work)}, {"mechanism", mechanism}};
  }

  void add_json(const Plan& plan, const Proof& proof, double us) {
    ordered_json object = head(plan.work, name(plan.mechanism));
    object["proven"] = proof.ok;
    if (proof) {
      object["claims"] = claims;
      if (flags_.in_context) object["claims"].push_back(claim_in_context);
      object["steps"] = proof.segments;
      object["epochs"] = proof.epochs;
      object["accesses"] = proof.accesses;
      object["skew"] = proof.skew < 0 ? ordered_json() : ordered_json(proof.skew);
    } else {
      object["rule"] = proof.rule;
      object["failure"] = proof.failure;
    }
    object["us"] = us;
    json_.push_back(std::move(object));
  }

  void print_text(const Plan& plan, const Proof& proof, double us) const {
    const std::string what = fmt::format("{} plan for {}", name(plan.mechanism), describe(plan.work));
    if (!proof) {
      fmt::print("not proven: {}\n  {}: {}\n", what, proof.rule, proof.failure);
      return;
    }
    fmt::print("proven: {}\n  {}\n  {} steps and runs of tiles in {} epochs, {} accesses, in {}\n  {}\n",
               what, fmt::join(claims, "; "), proof.segments, proof.epochs, proof.accesses, format_us(us),
               skew_text(proof.skew));
    if (flags_.in_context) fmt::print("  {}\n", claim_in_context);
  }

  const VerifyFlags& flags_;
  bool all_ = true, any_ = false;
  ordered_json json_ = ordered_json::array();
};

}  // namespace

int verify(const VerifyFlags& flags, const ProcessLaunch& launch) {
  if (!launch.speaks()) return 0;
  Proofs proofs(flags);
  if (!flags.file.empty()) {
    proofs.add(read_plan(flags.file));
    return proofs.finish();
  }
  const int ranks = flags.where.ranks(launch);
  const WorldOptions here = flags.where.options(launch);
  const Target target = flags.how.automatic ? target_to_tune_for(flags.machine, ranks, here, launch)
                                            : target_to_plan_for(flags.machine, ranks, here, launch);
  for (const NamedProblem& named : make_problems(flags.what, ranks))
    for (const Candidate& candidate : make_candidates(named.problem, flags.how, target)) {
      if (candidate.plan) {
        proofs.add(*candidate.plan);
      } else {
        proofs.add(named, candidate);
      }
    }
  return proofs.finish();
}

}  // namespace shingle::cli
