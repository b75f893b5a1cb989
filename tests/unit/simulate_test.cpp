// The simulator against what can be worked out by hand.
#include "shingle/sim/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/metrics.hpp"
#include "sim/links.hpp"

namespace shingle::simulate_test {
namespace {

using testing::HasSubstr;

/// Ten workers, tiles of 10×10 that take 5 us and 1 us for each 10 of K, a link of 1 byte an us.
Machine machine() {
  Machine machine;
  machine.name = "plain";
  machine.workers = 10;
  machine.tile_rows = machine.tile_cols = 10;
  machine.tiles = {{10, 10, 5, 0.1}};
  machine.memory_gbps = 1e6;
  machine.link = {1, 2};
  return machine;
}

Problem problem(Op op, int world = 2) {
  return {.op = op, .world = world, .m = 100, .n = 100, .k = 50};
}

double time(const Plan& plan, const Machine& on, const SimOptions& options = {}) {
  return simulate(plan, on, options).makespan_us;
}

TEST(Simulate, PartsOfAnEpiloguesSumsLandOneAfterAnother) {
  Machine on = machine();
  on.peer_memory = true;
  on.reduce_gbps = 1;
  const auto slower_us = [&](int world) {
    const Problem four_waves = {
        .op = Op::gemm_reducescatter, .world = world, .m = 100 * world, .n = 40, .k = 50};
    const Plan plan = plan_fused(four_waves, on, {.sums = SumsIn::epilogue}).value();
    Machine landing = on;
    landing.parts_gbps = 0.4;
    return time(plan, landing) - time(plan, on);
  };
  EXPECT_EQ(slower_us(2), 0) << "the only part lands while the tile is multiplied";
  EXPECT_NEAR(slower_us(3), 4 * 1, 0.5) << "in each of four waves of own tiles, 400 bytes at 400 an us";
}

/// A hundred tiles on ten workers: ten waves of 10 us.
constexpr double gemm_us = 100;
/// 40 kB, of which half goes over the link twice, at 1000 bytes an us, each time after 2 us.
constexpr double allreduce_us = 44, half_us = 24;

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

/// 100×90 in a nest of 10×10 tiles: of the last ten of each hundred nine are there.
TEST(Simulate, PhantomTilesTakeNobodysTime) {
  Problem ragged = problem(Op::gemm_allreduce);
  ragged.n = 90;
  Machine eights = machine();
  eights.order = {.raster = Raster::along_m, .swizzle = 4};
  const Plan plan = plan_signal(ragged, eights, {.group_waves = {12}}).value();
  const auto& gemm = std::get<Gemm>(plan.ranks[0].lanes[0].steps[0]);
  ASSERT_EQ(gemm.grid.positions(), 120);
  ASSERT_EQ(gemm.grid.tiles(), 90);
  EXPECT_NEAR(simulate(plan, eights).computing_us[0], 90, 0.5) << "nine waves, not twelve";
}

TEST(Simulate, PickedRowsSlowTheirGemmAlone) {
  Machine picks = machine();
  picks.picking_rate = 0.8;
  const auto computing = [&](Op op, const Machine& on) {
    return simulate(plan_signal(problem(op), on, {.group_waves = {10}}).value(), on).computing_us[0];
  };
  EXPECT_NEAR(computing(Op::gemm_reducescatter, picks), gemm_us / 0.8, 0.5);
  EXPECT_NEAR(computing(Op::gemm_allreduce, picks), gemm_us, 0.5);
}

/// The count behind the GEMM is a kernel where another rank looks at it; the wait for it has begun before.
/// One that is handed over costs nothing.
TEST(Simulate, SlotsWithoutTokensTakeNobodysTime) {
  // Each expert gets 50 rows of a rank's tokens if all are chosen equally often.
  const auto with = [](Op op, std::int32_t capacity) {
    return with_m({.op = op, .world = 2, .n = 100, .k = 50, .experts = {4, 2, capacity}}, 100);
  };
  for (const Op op : {Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall}) {
    Machine on = machine();
    const auto fused = [&](std::int32_t capacity) { return plan_fused(with(op, capacity), on, {}).value(); };
    const Simulated least = simulate(fused(50), on), most = simulate(fused(200), on);
    EXPECT_NEAR(most.computing_us[0], least.computing_us[0], 0.01 * least.computing_us[0]);
    EXPECT_LT(simulate(fused(20), on).computing_us[0], 0.5 * least.computing_us[0]) << "most are dropped";
    // Collectives know no counts: they take all slots along.
    const auto sequential = [&](std::int32_t capacity) {
      return time(plan_sequential(with(op, capacity), on).value(), on);
    };
    EXPECT_GT(sequential(200), sequential(50) + 50) << "600 rows, of which half go over the link";
    // Tiles without tokens lie between others: no mechanism computes them.
    for (const Mechanism mechanism :
         {Mechanism::sequential, Mechanism::chunked, Mechanism::signal, Mechanism::fused}) {
      const auto computing = [&](std::int32_t capacity) {
        return simulate(plan_with(with(op, capacity), on, default_params(mechanism)).value(), on)
            .computing_us[0];
      };
      EXPECT_NEAR(computing(200), computing(50), 0.02 * computing(50)) << name(mechanism);
    }
  }
}

TEST(Simulate, TilesWithoutTokensStillNotify) {
  // Orders in which some runs of tiles have none with a token.
  for (const Raster raster : {Raster::along_m, Raster::along_n})
    for (const std::int32_t swizzle : {1, 2, 3}) {
      const Problem problem =
          with_m({.op = Op::moe, .world = 2, .n = 40, .k = 50, .inner = 30, .experts = {4, 2, 100}}, 30);
      const TileParams tile{10, 10, {raster, swizzle, 1, 1, 0}};
      const double signal = time(plan_signal(problem, machine(), {.tile = tile}).value(), machine());
      EXPECT_GT(signal, 0);
      EXPECT_GT(time(plan_fused(problem, machine(), {.tile = tile, .helpers = 1}).value(), machine()), 0);
    }
}

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

/// Where waits are kernels, so is the pass of each group: of those that have come before the GEMM ends, a
/// launch each.
TEST(Simulate, EachGroupIsRestoredByAKernel) {
  Machine kernels = machine();
  kernels.curves = {{Traffic::allreduce, 2, 0, {{4000, 1}, {40000, 1}}}};
  const auto us = [&](std::vector<std::int64_t> groups) {
    return time(plan_signal(problem(Op::gemm_allreduce), kernels, {.group_waves = std::move(groups)}).value(),
                kernels);
  };
  const double plain = us({4, 3, 3});
  kernels.launch_us = 5;
  kernels.sync_us = 2;
  // The GEMM's launch, then three passes; the last collective ends meanwhile.
  EXPECT_NEAR(us({4, 3, 3}) - plain, 5 + 3 * 5 - 1, 0.5);
  EXPECT_NEAR(us({4, 1, 2, 3}) - us({4, 3, 3}), 5, 0.5);
}

/// What comes from five ranks is put in order by five passes, each of which moves a fifth of the rows.
TEST(Simulate, PassesOfAnAllToAllMoveEachRowOnce) {
  Machine memory = machine();
  memory.link = {};
  memory.curves = {{Traffic::alltoall, 5, 0, {{4000, 1}, {80000, 1}}}};
  Problem routed = problem(Op::gemm_alltoall, 5);
  std::vector<std::int32_t> dest;
  for (std::int32_t row = 0; row < routed.m; ++row) dest.push_back(row % 5);
  routed.routing = std::make_shared<const Routing>(std::vector(5, dest));
  const Plan plan = plan_signal(routed, memory, {.group_waves = {10}}).value();
  const double free = time(plan, memory);
  memory.memory_gbps = 2;
  EXPECT_NEAR(time(plan, memory) - free, 2 * 40000 / 2e3, 1);
}

/// Half of ten waves of ten tiles leave, 4000 bytes each, before the other half is computed.
TEST(Simulate, AWorkerHasOneTileOnItsWay) {
  Machine gpu = machine();
  gpu.sync_us = 1e-9;
  gpu.link = {1, 0};
  const FusedParams params{.helpers = FusedParams::no_helpers};
  const Plan plan = plan_fused(problem(Op::gemm_reducescatter), gpu, params).value();
  const double free = time(plan, gpu);
  gpu.store_gbps = 4.0 / 30;  // a wave takes 30 us to leave, and 10 to be computed
  // The first wave that stays is staged when the fifth has left; then come four more.
  EXPECT_NEAR(time(plan, gpu) - free, 10 + 5 * 30 + 4 * 10 - gemm_us, 1);
  Machine cores = gpu;
  cores.sync_us = 0;
  EXPECT_NEAR(time(plan, cores) - free, 10 + 5 * 30 - gemm_us, 1) << "the last has left, all else is done";
  Machine by_tile = gpu;
  by_tile.store_gbps = 0;
  by_tile.tiles.front().store_gbps = gpu.store_gbps;
  EXPECT_DOUBLE_EQ(time(plan, by_tile), time(plan, gpu)) << "a rate of these tiles";
  gpu.store_gbps = 2;
  EXPECT_DOUBLE_EQ(time(plan, gpu), free) << "no faster than the link";
}

/// Half of ten waves leave, each in half the time of the next one.
TEST(Simulate, StoresToOtherRanksSlowTheirProduct) {
  Machine gpu = machine();
  gpu.sync_us = 1e-9;
  gpu.link = {100, 0};
  gpu.store_gbps = 4.0 / 5;  // a wave takes 5 us to leave, and 10 to be computed
  const FusedParams params{.helpers = FusedParams::no_helpers};
  const Plan plan = plan_fused(problem(Op::gemm_reducescatter), gpu, params).value();
  const double free = time(plan, gpu);
  gpu.contention.store_slowdown = 1;
  EXPECT_NEAR(time(plan, gpu) - free, 5 * 2.5, 0.1) << "during 5 of 10 us a tile goes on at half its pace";
  const Plan alone = plan_sequential(problem(Op::gemm), gpu).value();
  EXPECT_DOUBLE_EQ(time(alone, gpu), gemm_us);
}

/// A kernel for flagged data deals rows, not tiles, to its workers.
TEST(Simulate, AllWorkersShareFlaggedTiles) {
  Machine gpu = machine();
  gpu.sync_us = 1e-9;
  gpu.link = {1e6, 0};
  const Plan plan = plan_low_latency(problem(Op::gemm_reducescatter), gpu, {}).value();
  const double free = time(plan, gpu);
  gpu.pass_gbps = 0.001;
  // Half of 40 kB is read and pushed; three times that is read and stored by the sum.
  const double all_workers = 5 * 20000 / (gpu.pass_gbps * 1e3 * gpu.workers);
  EXPECT_GE(time(plan, gpu) - free, 0.9 * all_workers);
  EXPECT_LE(time(plan, gpu) - free, 1.4 * all_workers);
}

TEST(Simulate, FurtherPassesOfADeliveryHaveATimeOfTheirOwn) {
  Machine gpu = machine();
  gpu.sync_us = 1e-9;
  const auto longer_us = [&](int world, double pass_us) {
    const Plan plan = plan_low_latency(problem(Op::gemm_reducescatter, world), gpu, {}).value();
    Machine slow = gpu;
    slow.pass_us = pass_us;
    return time(plan, slow) - time(plan, gpu);
  };
  // Three pushes and a sum, which awaits what the third push of another rank stores.
  EXPECT_NEAR(longer_us(4, 100), 3 * 100, 2 * gemm_us);
  EXPECT_GT(longer_us(4, 100), longer_us(3, 100));
}

/// What several ranks get, a worker of a GPU stores to each of them.
TEST(Simulate, APassStoresToEachOfItsRanks) {
  Machine gpu = machine();
  gpu.sync_us = 1e-9;
  gpu.link = {1000, 0};
  gpu.pass_gbps = 0.001;
  const FusedParams params{.helpers = FusedParams::no_helpers};
  const auto sums_us = [&](Op op) {
    const Plan plan = plan_fused(problem(op, 4), gpu, params).value();
    return time(plan, gpu) - gemm_us;
  };
  // A tile is read from four regions and stored to one rank, or to four.
  EXPECT_NEAR(sums_us(Op::gemm_allreduce) / sums_us(Op::gemm_reducescatter), 8.0 / 5, 0.05);
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

using sim::Links;

/// Two transfers share a link; a third that crosses another, too, gets what the second link leaves it, and
/// the first two share the rest.
TEST(Links, AreSharedMaxMinFairly) {
  Links links;
  const auto wide = links.add_channel(0.012), narrow = links.add_channel(0.002);  // 12 and 2 bytes an us
  links.begin(0, 0, 50, {wide});
  links.begin(0, 1, 100, {wide});
  links.begin(0, 2, 4, {wide, narrow});
  links.share();
  // 2 for the third, 5 each for the others.
  EXPECT_DOUBLE_EQ(links.next_end(), 2);
  EXPECT_THAT(links.finished(2), testing::ElementsAre(2));
  links.share();  // 40 and 90 bytes are left, 6 an us each
  EXPECT_NEAR(links.next_end(), 2 + 40.0 / 6, 1e-9);
  EXPECT_THAT(links.finished(2 + 40.0 / 6), testing::ElementsAre(0));
  links.share();
  EXPECT_NEAR(links.next_end(), 2 + 40.0 / 6 + 50.0 / 12, 1e-9);
}

}  // namespace
}  // namespace shingle::simulate_test
