// The simulator against what can be worked out by hand.
#include "shingle/sim/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/metrics.hpp"
#include "support/plain_machine.hpp"

namespace shingle::simulate_test {
namespace {

using test::allreduce_us, test::gemm_us, test::half_us, test::machine, test::problem, test::time;
using testing::HasSubstr;

TEST(Simulate, ARunBeginsOnce) {
  Machine begins = machine();
  begins.begin_us = 7;
  const Plan plan = plan_sequential(problem(Op::gemm_allreduce), begins).value();
  EXPECT_NEAR(time(plan, begins) - time(plan, machine()), 7, 1e-9);
  EXPECT_NEAR(time(plan, begins, {.epochs = 3}) - time(plan, machine(), {.epochs = 3}), 7, 1e-9);
}

TEST(Simulate, WeightsThatLoadEarlyDoNotWaitForTheBegin) {
  Machine gpus = machine();
  gpus.peer_memory = gpus.early_kernels = true;
  gpus.sync_us = 1;
  Machine begins = gpus;
  begins.begin_us = 7;
  Problem few = problem(Op::gemm_allreduce);
  const auto begin_us = [&](std::int64_t m) {
    few.m = m;
    const Plan plan = plan_low_latency(few, gpus, {}).value();
    return time(plan, begins) - time(plan, gpus);
  };
  EXPECT_NEAR(begin_us(128), 0, 1e-9);
  EXPECT_NEAR(begin_us(132), 7, 1e-9) << "a library's kernel, which does not load early";
}

TEST(Simulate, AGemmIsItsWaves) {
  const Plan plan = plan_sequential(problem(Op::gemm), machine()).value();
  EXPECT_DOUBLE_EQ(time(plan, machine()), gemm_us);
  Machine slow = machine();
  slow.launch_us = 7;
  EXPECT_DOUBLE_EQ(time(plan, slow), gemm_us + 7);
  // One tile more is one wave more; where edges cost what they hold, it is a tenth of one.
  Problem longer = problem(Op::gemm);
  longer.m = 101;
  EXPECT_DOUBLE_EQ(time(plan_sequential(longer, machine()).value(), machine()), gemm_us + 10);
}

TEST(Simulate, ALibraryMayComputeFasterThanTiles) {
  Machine fast = machine();
  fast.library_rate = 1.25;
  EXPECT_DOUBLE_EQ(time(plan_sequential(problem(Op::gemm), fast).value(), fast), gemm_us / 1.25);
  const SignalParams params{.group_waves = {10}};
  const Plan tiled = plan_signal(problem(Op::gemm_allreduce), fast, params).value();
  EXPECT_DOUBLE_EQ(simulate(tiled, fast).computing_us[0], simulate(tiled, machine()).computing_us[0]);
}

TEST(Simulate, ALibraryMayFillItsLastWave) {
  Machine filling = machine();
  filling.library_tail = 0.5;
  Problem longer = problem(Op::gemm);
  longer.m = 104;  // 110 tiles: eleven full waves
  EXPECT_DOUBLE_EQ(time(plan_sequential(longer, filling).value(), filling), gemm_us + 10);
  longer.m = 54, longer.n = 86;  // 54 tiles: 5.4 waves, and half of the rest of the sixth
  EXPECT_DOUBLE_EQ(time(plan_sequential(longer, filling).value(), filling), 57);
  longer.m = longer.n = 10;  // one tile takes a whole wave
  EXPECT_DOUBLE_EQ(time(plan_sequential(longer, filling).value(), filling), 10);
}

TEST(Simulate, SequentialIsTheSum) {
  const Plan plan = plan_sequential(problem(Op::gemm_allreduce), machine()).value();
  EXPECT_DOUBLE_EQ(time(plan, machine()), gemm_us + allreduce_us);
  Machine signalled = machine();
  signalled.signal_us = 3;
  EXPECT_DOUBLE_EQ(time(plan, signalled), gemm_us + 3 + allreduce_us);
  EXPECT_DOUBLE_EQ(time(plan, machine(), {.epochs = 3}), 3 * (gemm_us + allreduce_us));
  // A collective on a curve does not ask the link.
  Machine curved = machine();
  curved.curves = {{Traffic::allreduce, 2, 0, {{40000, 60}, {80000, 120}}}};
  EXPECT_DOUBLE_EQ(time(plan, curved), gemm_us + 60);
}

TEST(Simulate, AKernelBehindAnotherLanesEventBeginsLater) {
  Machine gpu = machine();
  gpu.sync_us = 2, gpu.signal_us = 0.5;
  const auto edges_us = [&](Op op) {
    const Plan plan = plan_sequential(problem(op), gpu).value();
    return time(plan, gpu) - time(plan, machine());
  };
  EXPECT_NEAR(edges_us(Op::allgather_gemm), 2.5, 1e-9) << "the GEMM";
  EXPECT_NEAR(edges_us(Op::gemm_allreduce), 0, 1e-9) << "a collective has lone_latency";
}

/// Two groups of five waves: the first is sent beside the second, the second at the end.
TEST(Simulate, AGroupIsSentBesideTheNext) {
  const SignalParams params{.group_waves = {5, 5}};
  const Plan plan = plan_signal(problem(Op::gemm_allreduce), machine(), params).value();
  const Simulated run = simulate(plan, machine());
  const double restore = run.makespan_us - (gemm_us + half_us);
  EXPECT_GE(restore, 0);
  EXPECT_LT(restore, 0.5);  // memory is fast here
  EXPECT_NEAR(run.computing_us[0], gemm_us, 0.5);
  EXPECT_NEAR(run.exposed_us(), half_us, 0.5);
  // The critical path is the GEMM, then the second collective.
  double sent = 0;
  for (const std::size_t i : run.critical_path) {
    const Span& span = run.spans[i];
    if (plan.ranks[0].lanes[static_cast<std::size_t>(span.lane)].kind == LaneKind::communicate)
      sent += span.end_us - span.begin_us;
  }
  EXPECT_DOUBLE_EQ(sent, half_us);
}

/// Workers that a collective has are not the GEMM's; without any left it waits for tiles to end.
TEST(Simulate, CollectivesTakeWorkers) {
  Machine shared = machine();
  shared.collective_workers = 5;
  const SignalParams params{.group_waves = {10, 10}};
  const Plan plan = plan_signal(problem(Op::gemm_allreduce), shared, params).value();
  EXPECT_NEAR(time(plan, shared), 2 * gemm_us + half_us, 0.5);
  EXPECT_NEAR(time(plan, shared, {.worker_share = 0.5}), 2 * gemm_us + 2 * half_us, 0.5);
}

TEST(Simulate, ASlowRankIsWaitedFor) {
  const Plan plan = plan_sequential(problem(Op::gemm_allreduce), machine()).value();
  EXPECT_DOUBLE_EQ(time(plan, machine(), {.slowdown = {1, 1.5}}), 1.5 * gemm_us + allreduce_us);
}

/// Lagom Eq. 6: a third of a tile's time is memory, of which a collective takes half: that part doubles.
TEST(Simulate, CommunicationTakesMemory) {
  Machine busy = machine();
  busy.memory_gbps = 1000;
  busy.collective_workers = 5;
  busy.contention.memory_share = 0.3;
  busy.contention.channel_gbps = 100;
  const SignalParams params{.group_waves = {10, 10}};
  busy.link = {0.1, 0};  // the first collective takes longer than the second half of the GEMM
  const Plan plan = plan_signal(problem(Op::gemm_allreduce), busy, params).value();
  const Simulated run = simulate(plan, busy);
  EXPECT_NEAR(run.computing_us[0], gemm_us + 1.3 * gemm_us, 4);  // the first wave has begun
}

TEST(Simulate, CollectivesSlowProductsByTheirKind) {
  Machine busy = machine();
  busy.collective_workers = 5;
  busy.link = {0.1, 0};  // the first collective takes longer than the second half of the GEMM
  busy.contention.slowed_by(Traffic::reducescatter) = 2;
  const Plan plan =
      plan_signal(problem(Op::gemm_allreduce), busy, SignalParams{.group_waves = {10, 10}}).value();
  EXPECT_NEAR(simulate(plan, busy).computing_us[0], 2 * gemm_us, 1);
  busy.contention.slowed_by(Traffic::allreduce) = 0.3;
  EXPECT_NEAR(simulate(plan, busy).computing_us[0], gemm_us + 1.3 * gemm_us, 4);  // the first wave has begun
}

TEST(Simulate, ComputationSlowsCollectives) {
  Machine busy = machine();
  busy.collective_workers = 5;
  busy.contention.collective_slowdown = 0.5;
  const SignalParams params{.group_waves = {10, 10}};
  const Plan plan = plan_signal(problem(Op::gemm_allreduce), busy, params).value();
  busy.link = {0.2, 0};  // 100 us alone: 150 beside the second half, which lasts 100; then 33 are left
  EXPECT_NEAR(time(plan, busy), gemm_us + 100 + (100 - 100 / 1.5) + 100, 1);
}

/// Each of two that begin together gets what it can use of the links, up to half.
TEST(Simulate, CollectivesAtOnceShareLinks) {
  Problem moving = problem(Op::allreduce);
  moving.k = moving.n;
  Plan plan = plan_sequential(moving, machine()).value();
  plan.communicators.push_back(plan.communicators[0]);
  for (RankPlan& rank : plan.ranks) {
    rank.lanes.push_back(rank.lanes[0]);
    for (Step& step : rank.lanes[1].steps) std::get<Collective>(step).communicator = 1;
  }
  EXPECT_DOUBLE_EQ(time(plan, machine()), 80) << "twice 40 kB at 1000 bytes an us, latencies hidden";
  Machine wide = machine();
  wide.curves = {{Traffic::allreduce, 2, 0, {{40000, allreduce_us}}}};
  wide.link.gbps = 2;
  EXPECT_DOUBLE_EQ(time(plan, wide), allreduce_us) << "neither needs more than half";
  // The second moves 5 kB in 50 us and keeps its tenth of the link; of the rest the first needs only 0.8.
  for (RankPlan& rank : plan.ranks) {
    auto& second = std::get<Collective>(rank.lanes[1].steps[0]);
    second.send.rows = second.recv.rows = 12;
    second.send.cols = second.recv.cols = 100;
  }
  Machine curved = machine();
  curved.curves = {{Traffic::allreduce, 2, 0, {{4800, 48}, {40000, 50}}}};
  EXPECT_DOUBLE_EQ(time(plan, curved), 50);
  curved.curves = {{Traffic::allreduce, 2, 0, {{4800, 48}, {40000, 48.0001}}}};
  curved.link.gbps = 0.85;
  // 0.833 and 0.1 on 0.85: the first gets 0.75 for 48 us, and is then alone.
  EXPECT_NEAR(time(plan, curved), 48 + (40000 - 48 * 750) / (40000 / 48.0), 0.01);
}

/// The baseline's collective is the library's as it stands.
TEST(Simulate, SequentialCallsTakeWhatTheLibraryLikes) {
  Machine chosen = machine();
  chosen.collective_workers = 5;
  chosen.curves = {{Traffic::allreduce, 2, 5, {{40000, 100}}}, {Traffic::allreduce, 2, 0, {{40000, 60}}}};
  EXPECT_DOUBLE_EQ(time(plan_sequential(problem(Op::gemm_allreduce), chosen).value(), chosen), gemm_us + 60);
  const Plan overlapped = plan_signal(problem(Op::gemm_allreduce), chosen, {.group_waves = {20}}).value();
  EXPECT_NEAR(time(overlapped, chosen), 2 * gemm_us + 100, 0.5);
}

/// The count behind the GEMM is a kernel where another rank looks at it; the wait for it has begun before.
/// One that is handed over costs nothing.
TEST(Simulate, CountsMayBeKernels) {
  Machine kernels = machine();
  kernels.signal_us = 3;
  kernels.sync_us = 2;
  Plan plan = plan_sequential(problem(Op::gemm_allreduce), kernels).value();
  EXPECT_DOUBLE_EQ(time(plan, kernels), gemm_us + allreduce_us);
  for (int rank = 0; rank < 2; ++rank)
    for (Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
      for (Step& step : lane.steps)
        if (auto* notify = std::get_if<Notify>(&step)) notify->counter.rank = 1 - rank;
  EXPECT_DOUBLE_EQ(time(plan, kernels), gemm_us + 2 + 3 + allreduce_us);
}

TEST(Simulate, ALoneCollectiveHasItsLatencyToItself) {
  Problem moving = problem(Op::allreduce);
  moving.k = moving.n;
  Machine lone = machine();
  lone.curves = {{Traffic::allreduce, 2, 0, {{1000, 4}, {40000, 60}}}};
  lone.lone_latency = 1.5;
  Plan plan = plan_sequential(moving, lone).value();
  EXPECT_DOUBLE_EQ(time(plan, lone), 1.5 * 4 + 60);
  for (RankPlan& rank : plan.ranks) {
    rank.lanes[0].steps.push_back(rank.lanes[0].steps[0]);
    rank.issue.push_back(0);
  }
  EXPECT_DOUBLE_EQ(time(plan, lone), 1.5 * 4 + 2 * 60) << "the second follows at once";
}

TEST(Simulate, ALoneCollectiveBesideComputationTakesLonger) {
  Machine gpu = machine();
  gpu.lone_latency = 1;
  const Plan alone = plan_sequential(problem(Op::gemm_allreduce), gpu).value();
  const double before = time(alone, gpu);
  const SignalParams params{.group_waves = {5, 5}};
  const Plan beside = plan_signal(problem(Op::gemm_allreduce), gpu, params).value();
  const double overlapped = time(beside, gpu);
  gpu.contention.lone_latency = 40;
  EXPECT_DOUBLE_EQ(time(alone, gpu), before) << "nobody computes meanwhile";
  EXPECT_GT(time(beside, gpu), overlapped);
}

TEST(Simulate, RefusesWhatItCannotTell) {
  const Plan plan = plan_sequential(problem(Op::gemm_allreduce), machine()).value();
  const auto message = [&](const Machine& on, const SimOptions& options = {}) -> std::string {
    try {
      simulate(plan, on, options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  Machine bare = machine();
  bare.tiles.clear();
  EXPECT_THAT(message(bare), HasSubstr("'plain' has no tiles"));
  bare = machine();
  bare.link = {};
  EXPECT_THAT(message(bare), HasSubstr("link"));
  EXPECT_THAT(message(machine(), {.slowdown = {1}}), HasSubstr("slowdown has 1 ranks"));
  EXPECT_THAT(message(machine(), {.worker_share = 0}), HasSubstr("worker share"));
  EXPECT_THAT(message(machine(), {.epochs = 0}), HasSubstr("epochs = 0"));
  // A plan that waits for what never comes.
  Plan stuck = plan;
  for (Lane& lane : stuck.ranks[0].lanes)
    std::erase_if(lane.steps, [](const Step& step) { return std::holds_alternative<Notify>(step); });
  try {
    simulate(stuck, machine());
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("never ends"));
  }
}

TEST(Metrics, AreThoseOfThePapers) {
  const Plan plan = plan_signal(problem(Op::gemm_allreduce), machine(), {.group_waves = {5, 5}}).value();
  const Metrics metrics = measure(plan, machine()).value();
  EXPECT_DOUBLE_EQ(metrics.compute_us, gemm_us);
  EXPECT_DOUBLE_EQ(metrics.sequential_us, gemm_us + allreduce_us);
  EXPECT_NEAR(metrics.ect_us(), half_us, 0.5);
  EXPECT_NEAR(metrics.overlap_efficiency(), 1 - half_us / allreduce_us, 0.02);
  EXPECT_DOUBLE_EQ(metrics.wire_us, 40);
  EXPECT_NEAR(metrics.roofline_fraction(), gemm_us / (gemm_us + half_us), 0.01);
  EXPECT_DOUBLE_EQ(metrics.flops, 2.0 * 100 * 100 * 50);
  EXPECT_GT(metrics.mfu(), 0.3);
  EXPECT_LT(metrics.mfu(), 1);
}

// Two of four ranks have one of the links between pairs, not a rank's share of all.
TEST(Metrics, TheWireIsOfTheLinksBetweenTheRanks) {
  Machine mesh = machine();
  mesh.link = {3, 0};
  mesh.topology.pair = {1, 0};
  mesh.topology.pair_ranks = 4;
  mesh.curves = {{Traffic::allreduce, 4, 0, {{40000, 20}, {80000, 40}}}};
  const auto wire_us = [&](int world) {
    return measure(plan_sequential(problem(Op::gemm_allreduce, world), mesh).value(), mesh).value().wire_us;
  };
  EXPECT_DOUBLE_EQ(wire_us(4), 1.5 * 40000 / 3e3);
  mesh.curves.push_back({Traffic::allreduce, 2, 0, {{40000, 60}, {80000, 120}}});
  EXPECT_DOUBLE_EQ(wire_us(2), 40000 / 1e3);
}

}  // namespace
}  // namespace shingle::simulate_test
