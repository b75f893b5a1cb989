// What is to be run, planned as far as it goes without a world.
#pragma once

#include <optional>

#include "api/choose.hpp"
#include "shingle/common/problems.hpp"
#include "shingle/common/target.hpp"

namespace shingle::cli {

/// A mechanism for a problem: its plan, or why there is none.
struct Candidate {
  std::string mechanism;
  Result<Plan> plan;
  std::optional<Chosen> choice{};  ///< why it is this one, where it was chosen
  std::string note{};              ///< where its params come from, where that is not said otherwise
};

struct Job {
  NamedProblem named;
  std::vector<Candidate> candidates;
  bool as_is = false;  ///< run these plans, not what the planners here make of their mechanism and params
};

/// A plan from a file, as JSON; adds the file's name to what is wrong with it.
Plan read_plan(const std::string& file);
/// Throws Error with the rule that a plan breaks: one from elsewhere is not run unproven.
void require_proof(const Plan& plan, const std::string& file);

/// The mechanism that was chosen, or "auto" and why there is none.
Candidate candidate_of(Result<Chosen> chosen);

/// Throws InvalidArgument where a param is given that none of several mechanisms takes.
void require_taken(const std::vector<Mechanism>& mechanisms, Op op, const Params& params);

/// A mechanism's plan; what is searched is searched by the target's figures. Throws InvalidArgument where a
/// param is given that it does not take.
Candidate candidate_with(Mechanism mechanism, const Problem& problem, const Target& target,
                         const Params& params);

/// The plans of one problem with every mechanism of the flags; of several, each has the params that it takes.
/// Throws InvalidArgument where a param is given that none of them takes.
std::vector<Candidate> make_candidates(const Problem& problem, const PlanFlags& how, const Target& target);

/// Those of all problems. Throws InvalidArgument where a problem's matrices alone would not fit into memory.
std::vector<Job> make_jobs(const std::vector<NamedProblem>& problems, const PlanFlags& how,
                           const Target& target, const Launch& launch);

/// Takes over on all processes what the first has chosen: each may have kept other results of `tune`.
/// Collective.
void agree(World& world, std::vector<Job>& jobs, const Target& target);

/// "attn_out gemm+allreduce 256x4096x1024 bf16, 4 ranks"
std::string describe(const NamedProblem& named);

}  // namespace shingle::cli
