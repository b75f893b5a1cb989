#include "symmetry.hpp"

#include <fmt/format.h>

namespace shingle::planner {
namespace {

bool is_asked_for(const Problem& problem, bool symmetric) {
  return symmetric || problem.world > max_world;
}

}  // namespace

int planned_ranks(const Problem& problem, const Machine& machine, bool symmetric) {
  return is_asked_for(problem, symmetric) ? machine.topology.period(problem.world) : problem.world;
}

std::optional<Reason> asymmetric(const Problem& problem, const Machine& machine, bool symmetric) {
  const int planned = planned_ranks(problem, machine, symmetric);
  if (planned == problem.world && problem.world > max_world)
    return Reason{fmt::format("above {} ranks some stand for all, but {} ranks do not fill the nodes of {}",
                              max_world, problem.world, machine.name)};
  if (planned == problem.world) return std::nullopt;
  const std::string reason = asymmetry(problem);
  if (reason.empty()) return std::nullopt;
  return Reason{fmt::format("{} ranks cannot stand for all {}: {}", planned, problem.world, reason)};
}

std::optional<Reason> needs_all_ranks(const Problem& problem, bool symmetric, std::string_view mechanism) {
  if (!is_asked_for(problem, symmetric)) return std::nullopt;
  return Reason{fmt::format("{} reaches into other ranks' memory: it plans all ranks, at most {}", mechanism,
                            max_world)};
}

}  // namespace shingle::planner
