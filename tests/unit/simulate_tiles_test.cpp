// Tiles and what they store to other ranks, in the simulator, against what can be worked out by hand.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"
#include "support/plain_machine.hpp"

namespace shingle::simulate_tiles_test {
namespace {

using test::gemm_us, test::machine, test::problem, test::time;

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

/// A wave of ten tiles takes 10 us, or as long as reading the rows and columns that its tiles have.
TEST(Simulate, WavesReadTheOperandsOfTheirTiles) {
  Machine slow = machine();
  slow.memory_gbps = 0.55;  // 110 rows and columns of two bytes each, over a K of 50, in 20 us
  const auto computing_us = [&](std::int64_t m, std::int64_t n, std::vector<std::int64_t> groups) {
    Workload list{2, DType::bf16, {{"product", m, n, 50}}, {{"gather", CollectiveKind::allgather, 8}}};
    list.computations[0].groups = std::move(groups);
    const TileParams tile{10, 10, {.raster = Raster::along_n, .swizzle = 4}};
    return simulate(plan_sequential(list, slow, {.tile = tile}).value(), slow).computing_us[0];
  };
  EXPECT_NEAR(computing_us(10, 100, {}), 20, 0.1) << "of four positions, three are phantom tiles";
  EXPECT_NEAR(computing_us(10, 20, {2, 2, 2, 2, 2}), 20, 0.1) << "five weights of 20 columns";
  EXPECT_NEAR(computing_us(20, 10, {10, 10}), 10, 0.1) << "two weights: 40 rows and columns take 7 us";
  EXPECT_NEAR(computing_us(10, 20, {0, 10, 0}), 10, 0.1) << "the weights without rows are not read";
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

/// Eight rows of ten tiles, of which every second has tokens: positions 0, 2, 4, …, dealt to ten workers.
Plan every_second_row(const Machine& on) {
  const Problem routed =
      with_m({.op = Op::alltoall_grouped_gemm, .world = 2, .n = 100, .k = 50, .experts = {4, 2, 20}}, 20);
  return plan_sequential(routed, on).value();
}

/// The plan with an open gate before each product.
Plan gated(Plan plan) {
  const auto counter = static_cast<std::int32_t>(plan.counters.size());
  plan.counters.push_back({.name = "open", .growth = {plan.ranks.size(), {0}}});
  for (RankPlan& rank : plan.ranks)
    for (Lane& lane : rank.lanes)
      for (Step& step : lane.steps)
        if (auto* gemm = std::get_if<Gemm>(&step))
          gemm->gates.push_back({counter, {gemm->grid.positions()}, {0}, {0}});
  return plan;
}

TEST(Simulate, GatedTilesOfCountedRowsAreDealtBeforeTheyAreCounted) {
  Machine on = machine();
  on.workers = 11;       // a gated kernel leaves one to the kernels that open its gates
  on.order.swizzle = 8;  // down eight rows of tiles, then the next column
  const Plan plan = every_second_row(on);
  const auto computing_us = [&](const Plan& of) { return simulate(of, on).computing_us[0]; };
  EXPECT_NEAR(computing_us(gated(plan)), 40, 0.5) << "four waves of ten tiles";
  on.sync_us = 1e-9;
  EXPECT_NEAR(computing_us(gated(plan)), 80, 0.5) << "half of the workers have none";
  on.workers = 10;
  EXPECT_NEAR(computing_us(every_second_row(on)), 40, 0.5) << "all counts are there";
}

TEST(Simulate, KernelsLookUpSlotsAndCounts) {
  Machine on = machine();
  on.sync_us = 1e-9;
  const Plan plan = every_second_row(on);
  const double free = time(plan, on);
  on.load_us = 10;
  // Two each: of ids, in two rounds of tiles of slots, and of counts.
  EXPECT_NEAR(time(plan, on) - free, 2 * 10 + 2 * 2 * 10 + 2 * 10, 1);
}

/// Three rows of tiles in clusters of two: the last row's tiles keep two workers each.
TEST(Simulate, ClustersKeepTheirWorkersForPhantomTiles) {
  Machine on = machine();
  on.tiles = {{100, 10, 5, 0.1}};
  const auto computing_us = [&](std::int64_t m) {
    const Workload list{
        2, DType::bf16, {{"product", m, 100, 50}}, {{"gather", CollectiveKind::allgather, 8}}};
    const TileParams tile{100, 10, {.raster = Raster::along_m, .swizzle = 4, .cluster_m = 2}};
    return simulate(plan_sequential(list, on, {.tile = tile}).value(), on).computing_us[0];
  };
  EXPECT_NEAR(computing_us(300), 30, 0.5);
  on.sync_us = 1e-9;
  EXPECT_NEAR(computing_us(300), 40, 0.5);
  EXPECT_NEAR(computing_us(400), 40, 0.5);
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

/// A wake of a kernel tries all its tiles again that wait for parts. If each of them asked for one more wake,
/// events would multiply without end.
TEST(Simulate, TilesThatAwaitPartsAskForOneWake) {
  const Machine h200 = machine_from_spec("h200x8");
  const Problem many{
      .op = Op::gemm_allreduce, .world = 4, .m = 4608, .n = 8192, .k = 3584, .dtype = DType::bf16};
  const FusedParams params{
      .tile = {128, 128}, .sums = SumsIn::epilogue, .comm_order = CommOrder::interleaved};
  const Plan plan = plan_fused(many, h200, params).value();
  constexpr int tiles = 4 * 36 * 64;
  EXPECT_LT(simulate(plan, h200).events, 30 * tiles);
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
  std::swap(by_tile.tiles.front().alone_store_gbps, by_tile.tiles.front().store_gbps);
  EXPECT_DOUBLE_EQ(time(plan, by_tile), time(plan, gpu)) << "a rate outside clusters";
  gpu.store_gbps = 2;
  EXPECT_DOUBLE_EQ(time(plan, gpu), free) << "no faster than the link";
}

TEST(Simulate, OnlyTilesDoNotStoreAtTheRateOfTheirTiles) {
  Machine gpu = machine(), slow = gpu;
  gpu.sync_us = slow.sync_us = 1e-9;
  slow.tiles.front().store_gbps = slow.tiles.front().alone_store_gbps = 0.1;
  const auto slower = [&](std::int64_t m) {
    const Problem product{.op = Op::gemm_reducescatter, .world = 2, .m = m, .n = 50, .k = 50};
    const Plan plan = plan_fused(product, gpu, {.helpers = FusedParams::no_helpers}).value();
    return time(plan, slow) - time(plan, gpu);
  };
  EXPECT_DOUBLE_EQ(slower(20), 0) << "ten workers have one tile each";
  EXPECT_GT(slower(40), 10) << "no next tile's loads wait for the stores of an only tile";
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

}  // namespace
}  // namespace shingle::simulate_tiles_test
