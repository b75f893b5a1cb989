#include <algorithm>
#include <bit>

#include "shingle/machine/machine.hpp"

namespace shingle {
namespace {

/// Consecutive messages of a collective. Recursive halving or doubling takes log2 of the participants and
/// moves no more bytes than a ring. In an all-to-all, all messages are in flight at once.
int rounds(Traffic traffic, int participants) {
  if (traffic == Traffic::alltoall) return 1;
  const int steps = std::bit_width(static_cast<unsigned>(participants) - 1);
  return traffic == Traffic::allreduce ? 2 * steps : steps;
}

double over_link_us(const Link& link, Traffic traffic, int participants, double bytes) {
  return rounds(traffic, participants) * link.latency_us +
         Link{link.gbps, 0}.transfer_us(wire_factor(traffic, participants) * bytes);
}

/// Rate and latency relative to NCCL's own choice, from NCCL's tuning model (src/graph/tuning.cc).
///
/// LL sends one byte of flags for each byte of data, LL128 one for every 15. A step over NVLink takes 0.6 us
/// with LL, 1.9 us with LL128 and 3.4 us with Simple.
///
/// The figures of transports are assumed, except for peer-to-peer: shared memory is written and then read,
/// and a network card is no faster.
struct Penalty {
  double rate = 1;
  double latency = 1;
};

Penalty penalty_of(const CollectiveConfig& config, int ranks) {
  const double steps = ranks - 1, levels = std::bit_width(static_cast<unsigned>(ranks) - 1);
  static constexpr Penalty protocols[] = {{}, {0.5, 1}, {15.0 / 16, 1.9 / 0.6}, {1, 3.4 / 0.6}};
  static constexpr Penalty transports[] = {{}, {}, {0.5, 2}, {0.5, 4}, {}};
  const Penalty algorithms[] = {{}, {0.92, 1}, {1, steps / levels}, {1, 1}};
  const Penalty& algorithm = algorithms[static_cast<std::size_t>(config.algorithm)];
  const Penalty& protocol = protocols[static_cast<std::size_t>(config.protocol)];
  const Penalty& transport = transports[static_cast<std::size_t>(config.transport)];
  return {algorithm.rate * protocol.rate * transport.rate,
          algorithm.latency * protocol.latency * transport.latency};
}

double within_node_us(const Machine& machine, Traffic traffic, int ranks, int workers, double bytes) {
  if (ranks < 2) return 0;
  const double us = collective_us(machine.curves, traffic, ranks, workers, bytes);
  if (us >= 0 && machine.topology.serial)  // measured without the emulated link
    return std::max(us, machine.link.transfer_us(wire_factor(traffic, ranks) * bytes));
  if (us >= 0) return us;
  const bool own = ranks == 2 && machine.topology.pair.paced();
  return over_link_us(own ? machine.topology.pair : machine.link, traffic, ranks, bytes);
}

/// A collective within the nodes and between them. Chunks pass through both at once, as in a pipeline.
struct Stages {
  double latency_us = 0;
  double within_us = 0, between_us = 0;  ///< of the bytes
  bool pipelined = true;

  double us() const {
    return latency_us + (pipelined ? std::max(within_us, between_us) : within_us + between_us);
  }
};

Stages stages_of(const Machine& machine, Traffic traffic, int ranks, int workers, double bytes) {
  const int per_node = machine.topology.ranks_per_node;
  const bool one_node = per_node == 0 || ranks <= per_node;
  const int nodes = one_node ? 1 : (ranks + per_node - 1) / per_node, inside = one_node ? ranks : per_node;
  // Each rank of an all-to-all sends a node's share of its bytes within its node. The ranks of a node
  // together send the rest over the node's link.
  //
  // The other collectives reduce within the node first, or gather within it last. So each byte of the matrix
  // crosses the link once for each step of the ring over nodes. The number of ranks in a node does not
  // matter.
  const bool all_to_all = traffic == Traffic::alltoall;
  const double within = within_node_us(machine, traffic, inside, workers, all_to_all ? bytes / nodes : bytes);
  const double first = std::min(within_node_us(machine, traffic, inside, workers, 0), within);
  if (one_node) return {first, within - first, 0};
  const double link =
      over_link_us(machine.topology.node, traffic, nodes, all_to_all ? bytes * per_node : bytes);
  const double link_first = over_link_us(machine.topology.node, traffic, nodes, 0);
  return {first + link_first, within - first, link - link_first, !machine.topology.serial};
}

}  // namespace

double collective_us(const Machine& machine, Traffic traffic, int ranks, int workers, double bytes) {
  return ranks < 2 ? 0 : stages_of(machine, traffic, ranks, workers, std::max(bytes, 0.0)).us();
}

int channels_of(const Machine& machine, const CollectiveConfig& config) {
  return config.channels > 0 ? config.channels : machine.collective_workers;
}

double collective_us(const Machine& machine, Traffic traffic, int ranks, const CollectiveConfig& config,
                     double bytes) {
  if (ranks < 2) return 0;
  const double chosen = collective_us(machine, traffic, ranks, config.channels, bytes);
  const double latency = std::min(collective_us(machine, traffic, ranks, config.channels, 0), chosen);
  const Penalty penalty = penalty_of(config, ranks);
  const double us = latency * penalty.latency + (chosen - latency) / penalty.rate;
  if (config.chunk_bytes == 0) return us;
  // The first chunks fill the pipeline, and pass through one stage while the other has none.
  const Stages stages = stages_of(machine, traffic, ranks, config.channels, std::max(bytes, 0.0));
  const int channels = std::max(channels_of(machine, config), 1);
  const double first = std::min(static_cast<double>(config.chunk_bytes) * channels / bytes, 1.0);
  const double filling_us = stages.pipelined ? first * std::min(stages.within_us, stages.between_us) : 0;
  return us + filling_us +
         chunks_of(traffic, ranks, channels, config.chunk_bytes, bytes) *
             machine.contention.chunk_us.value_or(machine.link.latency_us / 2);
}

double chunks_of(Traffic traffic, int ranks, int channels, std::int64_t chunk_bytes, double bytes) {
  return wire_factor(traffic, ranks) * bytes / (channels * static_cast<double>(chunk_bytes));
}

}  // namespace shingle
