#include <algorithm>
#include <bit>

#include "shingle/machine/machine.hpp"

namespace shingle {
namespace {

/// Messages that follow one upon another: halving or doubling what is sent needs log2 of the participants and
/// moves no more than a ring does; in an all-to-all all messages are under way at once.
int rounds(Traffic traffic, int participants) {
  if (traffic == Traffic::alltoall) return 1;
  const int steps = std::bit_width(static_cast<unsigned>(participants) - 1);
  return traffic == Traffic::allreduce ? 2 * steps : steps;
}

double over_link_us(const Link& link, Traffic traffic, int participants, double bytes) {
  return rounds(traffic, participants) * link.latency_us +
         Link{link.gbps, 0}.transfer_us(wire_factor(traffic, participants) * bytes);
}

double within_node_us(const Machine& machine, Traffic traffic, int ranks, int workers, double bytes) {
  if (ranks < 2) return 0;
  const double us = collective_us(machine.curves, traffic, ranks, workers, bytes);
  if (us >= 0) return us;
  const bool own = ranks == 2 && machine.topology.pair.paced();
  return over_link_us(own ? machine.topology.pair : machine.link, traffic, ranks, bytes);
}

}  // namespace

double collective_us(const Machine& machine, Traffic traffic, int ranks, int workers, double bytes) {
  if (ranks < 2) return 0;
  bytes = std::max(bytes, 0.0);
  const int per_node = machine.topology.ranks_per_node;
  if (per_node == 0 || ranks <= per_node) return within_node_us(machine, traffic, ranks, workers, bytes);
  const int nodes = (ranks + per_node - 1) / per_node;
  // A rank's all-to-all sends a node's share of its bytes to its own node, and all of a node's ranks send the
  // rest over its one link. The others reduce or gather within the node first or last, so that each byte of
  // the matrix crosses that link once a step of the ring, whatever the number of ranks.
  const bool all_to_all = traffic == Traffic::alltoall;
  return within_node_us(machine, traffic, per_node, workers, all_to_all ? bytes / nodes : bytes) +
         over_link_us(machine.topology.node, traffic, nodes, all_to_all ? bytes * per_node : bytes);
}

}  // namespace shingle
