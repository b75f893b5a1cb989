// What is to be run, planned as far as it goes without a world.
#pragma once

#include <optional>

#include "shingle/api/choose.hpp"
#include "shingle/problems.hpp"

namespace shingle::cli {

/// A mechanism for a problem: its plan, or why there is none.
struct Candidate {
  std::string mechanism;
  Result<Plan> plan;
  std::optional<Chosen> choice{};  ///< why it is this one, where it was chosen
};

struct Job {
  NamedProblem named;
  std::vector<Candidate> candidates;
  bool as_is = false;  ///< run these plans, not what the planners here make of their mechanism and params
};

/// The machine to plan for: as machine_from_spec() reads it, or where nothing is given this one. Throws
/// InvalidArgument where it has fewer ranks.
Machine machine_to_plan_for(const std::string& spec, int ranks, const WorldOptions& here);

/// The machine whose times are to be predicted: that of a profile, with the links and engines that are asked
/// for here in place of its own; or where none is given this one, measured once and kept beside what was
/// tuned. Throws InvalidArgument where it has fewer ranks, or under mpirun without a profile.
Machine machine_to_tune_for(const std::string& profile, int ranks, const WorldOptions& here,
                            const Launch& launch);

/// A plan from a file, as JSON; adds the file's name to what is wrong with it.
Plan read_plan(const std::string& file);
/// Throws Error with the rule that a plan breaks: one from elsewhere is not run unproven.
void require_proof(const Plan& plan, const std::string& file);

/// The mechanism that was chosen, or "auto" and why there is none.
Candidate candidate_of(Result<Chosen> chosen);

/// The plans of one problem with every mechanism of the flags.
std::vector<Candidate> make_candidates(const Problem& problem, const PlanFlags& how, const Machine& machine);

/// Those of all problems. Throws InvalidArgument where a problem's matrices alone would not fit into memory.
std::vector<Job> make_jobs(const std::vector<NamedProblem>& problems, const PlanFlags& how,
                           const Machine& machine, const Launch& launch);

/// "attn_out gemm+allreduce 256x4096x1024 bf16, 4 ranks"
std::string describe(const NamedProblem& named);

}  // namespace shingle::cli
