// Machines on which a collective slows products as much as asked for.
#pragma once

#include "shingle/machine/machine.hpp"

namespace shingle::bench {

/// With NCCL's default beside it, a product that waits for memory for `memory_share` of its time takes
/// `slowdown` times as long (Lagom Eq. 5 and 6). Chunks of 16 KiB take next to nothing (Figure 3).
inline Machine contended(Machine machine, double slowdown) {
  const double share = machine.contention.memory_share, channels = machine.collective_workers;
  const double waves = machine.workers / (machine.workers - channels);
  const double left = share / (slowdown / waves - (1 - share));  // of the memory's rate
  machine.contention.channel_gbps = (1 - left) * machine.memory_gbps / channels;
  machine.contention.chunk_bytes = 512 << 10;
  return machine;
}

}  // namespace shingle::bench
