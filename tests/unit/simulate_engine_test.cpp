// What the phases of copy engines cost in the simulator, each against what can be worked out by hand: three
// ranks, one launching thread, links that take no time.
#include <gtest/gtest.h>

#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::simulate_engine_test {
namespace {

constexpr EnginePhases phases{.control_us = 1, .schedule_us = 2, .copy_us = 3, .sync_us = 4};
constexpr double copied_us = 3 + 4;

Machine machine_with(const EnginePhases& engine) {
  Machine machine;
  machine.memory_gbps = 1e9;
  machine.link = {1e9, 0};
  machine.engine = engine;
  return machine;
}

double time(CopyVariant variant, const EnginePhases& engine, bool prelaunch = false) {
  const Machine machine = machine_with(engine);
  Problem problem{.op = Op::allgather, .world = 3, .m = 3, .n = 4, .k = 4};
  if (variant == CopyVariant::swap) {
    problem.op = Op::alltoall;
    problem.routing = std::make_shared<const Routing>(std::vector(3, std::vector<std::int32_t>{0, 1, 2}));
  }
  const Plan plan = plan_copy_engine(problem, machine, {.variant = variant, .prelaunch = prelaunch}).value();
  return simulate(plan, machine).makespan_us;
}

/// Batches of so many commands, the notify included, one after the other; then the last one's copy and sync.
double launched_us(int batches, int commands) {
  return batches * (commands * 1. + 2) + copied_us;
}

TEST(SimulateEngines, ControlAndScheduleAreInTurn) {
  EXPECT_NEAR(time(CopyVariant::pcpy, phases), launched_us(6, 2), 1e-6);
  EXPECT_NEAR(time(CopyVariant::b2b, phases), launched_us(3, 3), 1e-6);
  EXPECT_NEAR(time(CopyVariant::bcst, phases), launched_us(3, 2), 1e-6);
  EXPECT_NEAR(time(CopyVariant::swap, phases), launched_us(3, 2), 1e-6);
  EXPECT_NEAR(time(CopyVariant::pcpy, phases, true), 6 * 1 + copied_us, 1e-6)
      << "six places that engines poll";
}

TEST(SimulateEngines, FetchBesideEachOther) {
  EnginePhases engine = phases;
  engine.fetch_us = 10;
  EXPECT_NEAR(time(CopyVariant::pcpy, engine), launched_us(6, 2) + 10, 1e-6);
  EXPECT_NEAR(time(CopyVariant::pcpy, engine, true), 6 * 1 + copied_us, 1e-6) << "ahead of the epoch";
}

TEST(SimulateEngines, BeginACommandBehindAnotherLater) {
  EnginePhases engine = phases;
  engine.queued_us = 0.5;
  EXPECT_NEAR(time(CopyVariant::b2b, engine), launched_us(3, 3) + 0.5, 1e-6);
  EXPECT_NEAR(time(CopyVariant::b2b, engine, true), 3 * 1 + copied_us + 0.5, 1e-6);
  EXPECT_NEAR(time(CopyVariant::pcpy, engine), launched_us(6, 2), 1e-6) << "each the first of its engine";
}

TEST(SimulateEngines, PollWhatIsPrelaunched) {
  EnginePhases engine = phases;
  engine.poll_us = 5;
  EXPECT_NEAR(time(CopyVariant::pcpy, engine, true), 6 * 1 + 5 + copied_us, 1e-6);
  EXPECT_NEAR(time(CopyVariant::pcpy, engine), launched_us(6, 2), 1e-6);
}

TEST(SimulateEngines, ChargeBroadcastsAndSwaps) {
  EnginePhases engine = phases;
  engine.broadcast_us = 6, engine.swap_us = 7;
  EXPECT_NEAR(time(CopyVariant::bcst, engine), launched_us(3, 2) + 6, 1e-6);
  EXPECT_NEAR(time(CopyVariant::swap, engine), launched_us(3, 2) + 7, 1e-6);
  EXPECT_NEAR(time(CopyVariant::pcpy, engine), launched_us(6, 2), 1e-6);
}

/// Streams hold the commands before the epoch begins, unless its time includes the calls.
TEST(SimulateEngines, TakeCommandsFromStreams) {
  Machine machine = machine_with(phases);
  Plan plan =
      plan_copy_engine({.op = Op::allgather, .world = 3, .m = 3, .n = 4, .k = 4}, machine, {}).value();
  for (RankPlan& rank : plan.ranks)
    for (Lane& lane : rank.lanes) lane.submission.timed = false;
  const double created_us = simulate(plan, machine).makespan_us;
  machine.sync_us = 1e-3;  // waits are kernels on streams
  EXPECT_NEAR(simulate(plan, machine).makespan_us, copied_us, 0.01);
  for (RankPlan& rank : plan.ranks)
    for (Lane& lane : rank.lanes) lane.submission.timed = lane.kind == LaneKind::copy;
  EXPECT_NEAR(simulate(plan, machine).makespan_us, created_us, 0.01);
}

/// Late in a long run a femtosecond is less than two neighbouring times are apart.
TEST(SimulateEngines, EndHoweverLateItIs) {
  for (const double late_us : {1e3, 0x1p31, 0x1p40, 1e12}) {
    Machine machine;
    machine.link = {37, 0.1};
    machine.memory_gbps = 1e3;
    machine.engine = phases;
    machine.engine.control_us = late_us;
    const Problem problem{.op = Op::allgather, .world = 4, .m = 4099, .n = 4096, .k = 4096};
    const Simulated run = simulate(plan_copy_engine(problem, machine, {}).value(), machine);
    EXPECT_GT(run.makespan_us, late_us);
    EXPECT_LT(run.makespan_us, 1e3 * late_us);
    EXPECT_LT(run.events, 10000);
  }
}

}  // namespace
}  // namespace shingle::simulate_engine_test
