#include "shingle/jobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "shingle/base/file.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/memory.hpp"
#include "shingle/plan/verify.hpp"
#include "shingle/tune/cache.hpp"
#include "shingle/tune/profile.hpp"

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

Machine machine_to_tune_for(const std::string& profile, int ranks, const WorldOptions& here,
                            const Launch& launch) {
  Machine machine;
  if (!profile.empty() || here.backend == "cuda") {
    machine = machine_to_plan_for(profile, ranks, here);
  } else {
    if (launch.processes())
      throw InvalidArgument(
          "under mpirun --machine has to say which: a profile that `shingle profile` wrote");
    if (ranks > max_world)
      throw InvalidArgument(fmt::format(
          "--world {}: this machine runs at most {} ranks; say another --machine", ranks, max_world));
    WorldOptions bare = here;
    bare.link = {}, bare.engine = {};
    const Machine own = machine_of(ranks, bare);
    const std::string file =
        fmt::format("{}/host-{}x{}-{}.json", default_cache_directory(), ranks, own.workers, fingerprint(own));
    if (std::filesystem::is_regular_file(file)) {
      machine = read_machine(file);
    } else {
      fmt::print(stderr, "measuring this machine, once: {}\n", file);
      const auto world = make_world(ranks, bare);
      machine = shingle::profile(*world);
      std::filesystem::create_directories(default_cache_directory());
      write_file_atomically(file, to_json(machine));
    }
  }
  // A profile may know tiles that this build has no kernels for.
  if (const std::vector<TileShape> served = served_tiles(here); !served.empty())
    std::erase_if(machine.tiles, [&](const TileRate& tile) {
      return std::ranges::find(served, TileShape{tile.rows, tile.cols}) == served.end();
    });
  if (here.link.paced()) machine.link = here.link;
  if (here.engine.paced()) machine.engine = here.engine;
  return machine;
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
  if (!chosen) return {"auto", Reason{chosen.reason()}, {}};
  return {std::string(name(chosen->plan.mechanism)), chosen->plan, std::move(chosen).value()};
}

std::vector<Candidate> make_candidates(const Problem& problem, const PlanFlags& how, const Machine& machine) {
  std::vector<Candidate> candidates;
  if (how.automatic)
    return {candidate_of(choose(problem, machine, {.tune = {.params = how.params, .refuses = how.refuses}}))};
  for (const Mechanism mechanism : how.mechanisms)
    candidates.push_back(
        {std::string(name(mechanism)), make_plan(problem, machine, mechanism, how.params), {}});
  if (!how.mechanisms.empty()) return candidates;
  Result<Plan> plan = make_best_plan(problem, machine, how.params);
  const std::string served(plan ? name(plan->mechanism) : "best");
  candidates.push_back({served, std::move(plan), {}});
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
