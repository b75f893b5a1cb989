// Random machines for the simulator.
#pragma once

#include "random_problem.hpp"

namespace shingle::test {

/// A machine with all figures that times need.
inline Machine whole_machine(Dice& dice) {
  Machine machine = random_machine(dice);
  machine.link = {static_cast<double>(dice.size(1, 50)), static_cast<double>(dice.size(0, 5))};
  machine.memory_gbps = static_cast<double>(dice.size(50, 500));
  machine.launch_us = static_cast<double>(dice.size(0, 4));
  machine.signal_us = static_cast<double>(dice.size(0, 4));
  if (chance(dice, 50)) machine.sync_us = 2, machine.lone_latency = 0.5, machine.picking_rate = 0.9;
  machine.tiles = {{16, 16, 1, 0.01}, {64, 64, 2, 0.05}};
  machine.whole_tiles = chance(dice, 50);
  machine.early_kernels = chance(dice, 50);
  machine.topology.serial = chance(dice, 30);
  if (chance(dice, 30)) machine.topology.pair = {100, 1};
  if (chance(dice, 30)) machine.topology.ranks_per_node = 2, machine.topology.node = {10, 3};
  machine.contention.persistent = chance(dice, 50);
  machine.contention.collective_slowdown = chance(dice, 50) ? 0.2 : 0;
  machine.contention.memory_share = 0.3;
  machine.contention.channel_gbps = 5;
  if (chance(dice, 50)) machine.engine = {0.5, 1, 2, 20, 1, 0.5, 0.2, 1, 0.3, 0.4};
  if (chance(dice, 50))
    machine.curves = {{Traffic::allreduce, 2, 0, {{1024, 5}, {1 << 20, 90}}},
                      {Traffic::alltoall, 4, 2, {{1024, 4}, {1 << 20, 50}}}};
  return machine;
}

}  // namespace shingle::test
