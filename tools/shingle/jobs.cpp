#include "shingle/jobs.hpp"

#include <fmt/format.h>

#include "shingle/machine/profile.hpp"
#include "shingle/memory.hpp"

namespace shingle::cli {

std::string describe(const NamedProblem& named) {
  const std::string problem = shingle::describe(named.problem);
  return named.name.empty() ? problem : fmt::format("{} {}", named.name, problem);
}

Machine machine_to_plan_for(const std::string& spec, int ranks, const WorldOptions& here) {
  if (spec.empty()) return machine_of(ranks, here);
  Machine machine = machine_from_spec(spec);
  if (machine.ranks > 0 && ranks > machine.ranks)
    throw InvalidArgument(fmt::format("--world {}: {} has {} ranks", ranks, machine.name, machine.ranks));
  return machine;
}

std::vector<Candidate> make_candidates(const Problem& problem, const PlanFlags& how, const Machine& machine) {
  std::vector<Candidate> candidates;
  for (const Mechanism mechanism : how.mechanisms)
    candidates.push_back({std::string(name(mechanism)), make_plan(problem, machine, mechanism, how.params)});
  if (!how.mechanisms.empty()) return candidates;
  Result<Plan> plan = make_best_plan(problem, machine, how.params);
  const std::string served(plan ? name(plan->mechanism) : "best");
  candidates.push_back({served, std::move(plan)});
  return candidates;
}

std::vector<Job> make_jobs(const std::vector<NamedProblem>& problems, const PlanFlags& how,
                           const Machine& machine, const Launch& launch) {
  std::vector<Job> jobs;
  for (const NamedProblem& named : problems) {
    require_memory(user_matrix_bytes(named.problem, launch), describe(named), launch);
    jobs.push_back({named, make_candidates(named.problem, how, machine)});
  }
  return jobs;
}

}  // namespace shingle::cli
