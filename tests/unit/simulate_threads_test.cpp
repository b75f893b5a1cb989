// The simulator where threads of the host compute, move bytes and wait for emulated links.
#include <gtest/gtest.h>

#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::simulate_threads_test {
namespace {

constexpr double gemm_us = 100;

/// Two ranks of one worker: a tile of 100×100 takes 100 us whatever K, a link 1000 bytes an us.
Machine threads() {
  Machine machine;
  machine.name = "threads";
  machine.tile_rows = machine.tile_cols = 100;
  machine.tiles = {{100, 100, gemm_us, 1e-9}};
  machine.whole_tiles = false;
  machine.memory_gbps = 1e6;
  machine.link = {1, 0};
  machine.topology.serial = true;
  machine.curves = {{Traffic::allreduce, 2, 0, {{4, 30}, {40000, 36}}}, {Traffic::alltoall, 2, 0, {{4, 25}}}};
  return machine;
}

Problem problem(Op op) {
  return {.op = op, .world = 2, .m = 100, .n = 100, .k = 50};
}

double time(const Plan& plan, const Machine& on) {
  return simulate(plan, on).makespan_us;
}

/// A thread that has slept until its link was done still has to wake up, and more so beside computation.
TEST(SimulateThreads, SleepersWakeUp) {
  const Plan plan = plan_sequential(problem(Op::gemm_allreduce), threads()).value();
  const double link_us = 40;  // 40 kB, half of them twice
  EXPECT_NEAR(time(plan, threads()), gemm_us + link_us + 25, 0.1);
  Machine busy = threads();
  busy.contention.wake_us = 500;
  EXPECT_NEAR(time(plan, busy), gemm_us + link_us + 25, 0.1) << "nothing computes beside it";
  Machine bare = threads();
  bare.link = {};
  EXPECT_NEAR(time(plan, bare), gemm_us + 36, 0.1) << "the curve has it";
}

/// One shot: each rank stores its tile on both, one after the other, and sums two slices of 40 kB.
TEST(SimulateThreads, SumsAndStoresToSeveralRanksTakeTheWorkersTime) {
  const Plan plan = plan_fused(problem(Op::gemm_allreduce), threads(), {.one_shot = true}).value();
  const double free = time(plan, threads());
  Machine summing = threads();
  summing.reduce_gbps = 1;
  EXPECT_NEAR(time(plan, summing) - free, 120, 1) << "40 kB of either rank read, and 40 kB written";
  Machine passing = threads();
  passing.pass_gbps = 1;
  EXPECT_NEAR(time(plan, passing) - free, 120, 1) << "without a rate of its own a sum is a pass";
  Machine moving = threads();
  moving.memory_gbps = 1;
  moving.contention.steals = 0.5;
  const double without = [&] {
    Machine posted = moving;
    posted.contention.steals = 0;
    return time(plan, posted);
  }();
  EXPECT_NEAR(time(plan, moving) - without, 0.5 * 80, 1) << "half of a copy of 40 kB";
}

}  // namespace
}  // namespace shingle::simulate_threads_test
