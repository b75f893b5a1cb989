// What to run, planned as far as possible without a world.
#pragma once

#include <optional>

#include "api/choose.hpp"
#include "shingle/common/problems.hpp"
#include "shingle/common/target.hpp"

namespace shingle::cli {

/// A mechanism for a problem: its plan, or the reason why there is none.
struct Candidate {
  std::string mechanism;
  Result<Plan> plan;
  std::optional<Chosen> choice{};  ///< why `auto` chose this mechanism
  std::string note{};              ///< source of its params, unless `choice` says it
};

struct Job {
  NamedProblem named;
  std::vector<Candidate> candidates;
  bool as_is = false;  ///< run these plans, not new plans of the same mechanism and params
};

/// Reads a plan from a JSON file. Adds the file's name to errors.
Plan read_plan(const std::string& file);
/// Throws Error with the rule that a plan breaks. Plans from files run only if proven.
void require_proof(const Plan& plan, const std::string& file);

/// The chosen mechanism, or "auto" and the reason why there is none.
Candidate candidate_of(Result<Chosen> chosen);

/// Throws InvalidArgument if a given param is not taken by any of several mechanisms.
void require_taken(const std::vector<Mechanism>& mechanisms, const ParamList& params);

/// A mechanism's plan. Searches params by the target's figures. Throws InvalidArgument if the mechanism does
/// not take a given param.
Candidate candidate_with(Mechanism mechanism, const Problem& problem, const Target& target,
                         const ParamList& params);

/// The plans of one problem with every mechanism of the flags. With several mechanisms, each gets the params
/// that it takes. Throws InvalidArgument if no mechanism takes a given param.
std::vector<Candidate> make_candidates(const Problem& problem, const PlanFlags& how, const Target& target);

/// The plans of all problems. Throws InvalidArgument if a problem's matrices alone would not fit into memory.
std::vector<Job> make_jobs(const std::vector<NamedProblem>& problems, const PlanFlags& how,
                           const Target& target, const ProcessLaunch& launch);

/// Applies rank 0's choices on all processes, because each process may have other kept results of `tune`.
/// Collective.
void agree(World& world, std::vector<Job>& jobs, const Target& target);

/// Returns, for example, "attn_out gemm+allreduce 256x4096x1024 bf16, 4 ranks".
std::string describe(const NamedProblem& named);

}  // namespace shingle::cli
