// A machine whose times can be worked out by hand, and what a GEMM and its all-reduce take on it.
#pragma once

#include "shingle/machine/profile.hpp"
#include "shingle/plan/problem.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::test {

/// Ten workers, tiles of 10×10 that take 5 us and 1 us for each 10 of K, a link of 1 byte an ns.
inline Machine machine() {
  Machine machine;
  machine.name = "plain";
  machine.workers = 10;
  machine.tile_rows = machine.tile_cols = 10;
  machine.tiles = {{10, 10, 5, 0.1}};
  machine.memory_gbps = 1e6;
  machine.link = {1, 2};
  return machine;
}

inline Problem problem(Op op, int world = 2) {
  return {.op = op, .world = world, .m = 100, .n = 100, .k = 50};
}

inline double time(const Plan& plan, const Machine& on, const SimOptions& options = {}) {
  return simulate(plan, on, options).makespan_us;
}

/// A hundred tiles on ten workers: ten waves of 10 us.
inline constexpr double gemm_us = 100;
/// 40 kB, of which half goes over the link twice, at 1000 bytes an us, each time after 2 us.
inline constexpr double allreduce_us = 44, half_us = 24;

}  // namespace shingle::test
