#include "reach.hpp"

#include <fmt/format.h>

namespace shingle::planner {

bool reach_each_other(int world, const Machine& machine) {
  const int per_node = machine.topology.ranks_per_node;
  return world == 1 || (machine.peer_memory && (per_node == 0 || world <= per_node));
}

bool avoids_messages(const Machine& machine, const RingParams& given) {
  return machine.collective_workers > 0 && machine.peer_memory && given.engines == 0 &&
         given.mover == Mover::automatic && given.comm_workers == 0;
}

std::optional<Reason> out_of_reach(int world, const Machine& machine, std::string_view accesses,
                                   std::string_view remedy) {
  if (reach_each_other(world, machine)) return std::nullopt;
  return Reason{fmt::format("{} other ranks' memory, which is not accessible {}: {}", accesses,
                            machine.peer_memory ? fmt::format("from one node of {} ranks to another",
                                                              machine.topology.ranks_per_node)
                                                : "here",
                            remedy)};
}

}  // namespace shingle::planner
