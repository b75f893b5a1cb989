#include "symmetry.hpp"

#include <fmt/format.h>

namespace shingle::planner {
namespace {

bool is_asked_for(int world, bool symmetric) {
  return symmetric || world > max_world;
}

}  // namespace

int planned_ranks(int world, const Machine& machine, bool symmetric) {
  return is_asked_for(world, symmetric) ? machine.topology.period(world) : world;
}

std::optional<Reason> asymmetric(const Work& work, const Machine& machine, bool symmetric) {
  const int world = world_of(work), planned = planned_ranks(world, machine, symmetric);
  if (planned == world && world > max_world)
    return Reason{fmt::format("above {} ranks some stand for all, but {} ranks do not fill the nodes of {}",
                              max_world, world, machine.name)};
  if (planned == world) return std::nullopt;
  const std::string reason = asymmetry(work);
  if (reason.empty()) return std::nullopt;
  return Reason{fmt::format("{} ranks cannot stand for all {}: {}", planned, world, reason)};
}

std::optional<Reason> needs_all_ranks(const Problem& problem, bool symmetric, std::string_view mechanism) {
  if (!is_asked_for(problem.world, symmetric)) return std::nullopt;
  return Reason{fmt::format("{} reaches into other ranks' memory: it plans all ranks, at most {}", mechanism,
                            max_world)};
}

}  // namespace shingle::planner
