#include "shingle/common/jobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/run/memory.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "tune/searched.hpp"

namespace shingle::cli {

std::string describe(const NamedProblem& named) {
  const std::string problem = shingle::describe(named.problem);
  return named.name.empty() ? problem : fmt::format("{} {}", named.name, problem);
}

Plan read_plan(const std::string& file) {
  constexpr std::size_t largest_plan_bytes = std::size_t{64} << 20;
  try {
    return plan_from_json(read_file(file, largest_plan_bytes));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", file, error.what()));
  }
}

void require_proof(const Plan& plan, const std::string& file) {
  const Proof proof = verify(plan);
  if (!proof)
    throw Error(fmt::format("{} is not proven, so it is not run: {}: {}", file, proof.rule, proof.failure));
}

Candidate candidate_of(Result<Chosen> chosen) {
  if (!chosen) return {"auto", Reason{chosen.reason()}};
  return {std::string(name(chosen->plan.mechanism)), chosen->plan, std::move(chosen).value()};
}

void require_taken(const std::vector<Mechanism>& mechanisms, const ParamList& params) {
  std::string names;
  for (const Mechanism mechanism : mechanisms)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(mechanism));
  for (const Param& param : params)
    if (std::ranges::all_of(mechanisms,
                            [&](Mechanism mechanism) { return why_refused(mechanism, {param}).has_value(); }))
      throw InvalidArgument(fmt::format("--{}: none of {} takes it", param.name, names));
}

namespace {

/// Source of the searched params, or why they were not searched. Empty if there is nothing to search.
std::string note_on(const Problem& problem, const Machine& by, const Target& target, const Params& asked) {
  const auto* signal = std::get_if<SignalParams>(&asked);
  if (!signal || signal->equal_groups || !signal->group_waves.empty() || problem.traits().grouped) return {};
  if (searched_groups(problem, by, *signal))
    return fmt::format("groups of waves searched by {}", target.figures);
  if (!target.figures.empty())
    return fmt::format("equal groups: {} has no figures to search by", target.figures);
  return target.keeps_profile
             ? "equal groups: this machine has no profile; `shingle profile --keep` measures one"
             : "equal groups: no profile; give one with --machine";
}

}  // namespace

Candidate candidate_with(Mechanism mechanism, const Problem& problem, const Target& target,
                         const ParamList& list) {
  constexpr bool is_workload = false;
  const Params params = parse_params(mechanism, list, is_workload);
  const Machine& machine = searches_groups(mechanism) ? target.searched_by() : target.machine;
  Candidate candidate{std::string(name(mechanism)), make_plan(problem, machine, params)};
  if (candidate.plan) candidate.note = note_on(problem, machine, target, params);
  return candidate;
}

std::vector<Candidate> make_candidates(const Problem& problem, const PlanFlags& how, const Target& target) {
  std::vector<Candidate> candidates;
  if (how.automatic) {
    candidates.push_back(candidate_of(choose(problem, target.machine,
                                             {.tune = {.params = how.params, .refuses = how.refuses},
                                              .cache = target.tuned.get(),
                                              .keep = false})));
    const Candidate& chosen = candidates.front();
    if (chosen.plan)
      if (const auto reason = why_refused(chosen.plan->mechanism, how.params))
        candidates.front().note = reason->text;
    return candidates;
  }
  if (how.mechanisms.size() == 1) {
    candidates.push_back(candidate_with(how.mechanisms.front(), problem, target, how.params));
    return candidates;
  }
  if (!how.mechanisms.empty()) {
    require_taken(how.mechanisms, how.params);
    for (const Mechanism mechanism : how.mechanisms)
      candidates.push_back(candidate_with(mechanism, problem, target, accepted(mechanism, how.params)));
    return candidates;
  }
  Result<Plan> plan = make_best_plan(problem, target.machine, how.params);
  if (!plan) {
    candidates.push_back({"best", std::move(plan)});
    return candidates;
  }
  const Mechanism best = plan->mechanism;
  plan = Reason{};  // frees a large plan, which the next line makes again with its note
  candidates.push_back(candidate_with(best, problem, target, how.params));
  return candidates;
}

namespace {

/// Returns rank 0's text on all processes. Collective.
std::string told_by_first(World& world, const std::string& text) {
  const bool first = world.local_ranks().front() == 0;
  const double size = world.all_max({first ? static_cast<double>(text.size()) : 0})[0];
  std::vector<double> bytes(static_cast<std::size_t>(size), 0);
  if (first)
    std::ranges::transform(text, bytes.begin(), [](char c) { return static_cast<unsigned char>(c); });
  std::string told;
  for (const double byte : world.all_max(std::move(bytes))) told += static_cast<char>(static_cast<int>(byte));
  return told;
}

}  // namespace

void agree(World& world, std::vector<Job>& jobs, const Target& target) {
  auto choices = nlohmann::json::array();
  for (const Job& job : jobs)
    for (const Candidate& candidate : job.candidates)
      if (candidate.choice) choices.push_back({candidate.mechanism, to_json(candidate.plan->params, -1)});
  const auto told = nlohmann::json::parse(told_by_first(world, choices.dump()));
  if (told.size() != choices.size())
    throw Error("the processes chose for different operators: start all with the same arguments and machine");
  auto next = told.begin();
  for (Job& job : jobs)
    for (Candidate& candidate : job.candidates) {
      if (!candidate.choice) continue;
      const auto choice = next->get<std::pair<std::string, std::string>>();
      ++next;
      const Mechanism mechanism = parse_mechanism(choice.first);
      const ParamList params = params_from_json(choice.second);
      if (candidate.mechanism == choice.first && candidate.plan->params == params) continue;
      candidate.mechanism = choice.first;
      candidate.plan = plan_with(job.named.problem, target.machine, parse_params(mechanism, params));
    }
}

std::vector<Job> make_jobs(const std::vector<NamedProblem>& problems, const PlanFlags& how,
                           const Target& target, const ProcessLaunch& launch) {
  std::vector<Job> jobs;
  for (const NamedProblem& named : problems) {
    require_memory(user_matrix_bytes(named.problem, launch), describe(named), launch);
    jobs.push_back({named, make_candidates(named.problem, how, target)});
  }
  return jobs;
}

}  // namespace shingle::cli
