// What is to be run, planned as far as it goes without a world.
#pragma once

#include "shingle/problems.hpp"

namespace shingle::cli {

/// A mechanism for a problem: its plan, or why there is none.
struct Candidate {
  std::string mechanism;
  Result<Plan> plan;
};

struct Job {
  NamedProblem named;
  std::vector<Candidate> candidates;
};

/// The machine to plan for: as machine_from_spec() reads it, or where nothing is given this one. Throws
/// InvalidArgument where it has fewer ranks.
Machine machine_to_plan_for(const std::string& spec, int ranks, const WorldOptions& here);

/// The plans of one problem with every mechanism of the flags.
std::vector<Candidate> make_candidates(const Problem& problem, const PlanFlags& how, const Machine& machine);

/// Those of all problems. Throws InvalidArgument where a problem's matrices alone would not fit into memory.
std::vector<Job> make_jobs(const std::vector<NamedProblem>& problems, const PlanFlags& how,
                           const Machine& machine, const Launch& launch);

/// "attn_out gemm+allreduce 256x4096x1024 bf16, 4 ranks"
std::string describe(const NamedProblem& named);

}  // namespace shingle::cli
