// What the plans of `fused` promise: an order in which ranks never meet at one target, the own shard where it
// waits for nobody, sums in rank order.
#include <gtest/gtest.h>

#include <set>

#include "backend/remote.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/plan_edit.hpp"

namespace shingle::fused_plan_test {
namespace {

Problem problem(Op op, int world, std::int64_t m) {
  return {.op = op, .world = world, .m = m, .n = 96, .k = 40};
}

Machine machine(int workers) {
  Machine machine;
  machine.workers = workers;
  machine.tile_rows = 16;
  machine.tile_cols = 32;
  return machine;
}

FusedParams chosen(const Plan& plan) {
  return std::get<FusedParams>(params_of(plan));
}

const Gemm& gemm_of(const Plan& plan, int rank) {
  for (const Step& step : plan.ranks[static_cast<std::size_t>(rank)].lanes[0].steps)
    if (const auto* gemm = std::get_if<Gemm>(&step)) return *gemm;
  throw std::logic_error("no GEMM on lane 0");
}

/// The ranks that the tile at a position is stored on.
std::set<std::int32_t> targets(const Plan& plan, int rank, std::int64_t position) {
  const Gemm& gemm = gemm_of(plan, rank);
  std::set<std::int32_t> ranks;
  for_each_piece(gemm.out, gemm.grid, plan.routing(), position,
                 [&](const Piece& piece) { ranks.insert(piece.rank); });
  return ranks;
}

class OrderOfSums : public testing::TestWithParam<CommOrder> {};

TEST_P(OrderOfSums, AtEveryStepRanksStoreToDifferentOnes) {
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce})
    for (const int world : {2, 3, 5, 8})
      for (const TileOrder& order :
           {TileOrder{}, TileOrder{Raster::along_m, 2, 1, 1, 0}, TileOrder{Raster::along_n, 2, 1, 2, 0}}) {
        const FusedParams params{.tile = {.order = order}, .comm_order = GetParam()};
        const Plan plan = plan_fused(problem(op, world, 64 * world), machine(4), params).value();
        const std::int64_t positions = gemm_of(plan, 0).grid.positions();
        for (std::int64_t position = 0; position < positions; ++position) {
          std::set<std::int32_t> taken;
          for (int rank = 0; rank < world; ++rank) {
            const auto to = targets(plan, rank, position);
            if (to.empty()) continue;  // phantom rows on every rank alike
            ASSERT_EQ(to.size(), 1u) << "a tile belongs to one rank";
            EXPECT_TRUE(taken.insert(*to.begin()).second) << "two ranks store to rank " << *to.begin();
          }
          EXPECT_TRUE(taken.empty() || static_cast<int>(taken.size()) == world);
        }
        for (int rank = 0; rank < world; ++rank) {
          std::int64_t last = positions - 1;
          while (targets(plan, rank, last).empty()) --last;  // phantom
          EXPECT_EQ(targets(plan, rank, last), std::set<std::int32_t>{rank}) << "the own shard is last";
        }
      }
}

INSTANTIATE_TEST_SUITE_P(FusedPlan, OrderOfSums, testing::Values(CommOrder::ring, CommOrder::interleaved),
                         [](const auto& order) { return std::string(name(order.param)); });

TEST(FusedPlan, ShardsInTurnKeepAWaveBusyWithAllRanks) {
  FusedParams params{.comm_order = CommOrder::interleaved};
  for (const Raster raster : {Raster::along_m, Raster::along_n}) {
    params.tile.order = {raster, 2, raster == Raster::along_m ? 2 : 1, 1, 0};
    const Problem p{.op = Op::gemm_reducescatter, .world = 4, .m = 1024, .n = 256, .k = 40};
    const Plan plan = plan_fused(p, machine(64), params).value();
    for (int rank = 0; rank < p.world; ++rank) {
      const std::int64_t positions = gemm_of(plan, rank).grid.positions();
      for (std::int64_t wave = 0; wave < positions; wave += 64) {
        std::vector<int> tiles(4);
        for (std::int64_t position = wave; position < wave + 64; ++position)
          ++tiles[static_cast<std::size_t>(*targets(plan, rank, position).begin())];
        EXPECT_EQ(tiles, std::vector<int>(4, 16)) << "wave from " << wave << " of rank " << rank;
      }
    }
    EXPECT_TRUE(verify(plan));
  }
}

TEST(FusedPlan, ShardsTakeTurnsWhereLinksAreTheBound) {
  Machine gpu = machine(64);
  gpu.link = {100, 1};                // GB/s, us
  gpu.tiles = {{16, 32, 0.1, 0.01}};  // us
  Problem p{.op = Op::gemm_reducescatter, .world = 4, .m = 4096, .n = 4096, .k = 64};
  const FusedParams bound = chosen(plan_fused(p, gpu, {.sums = SumsIn::pass}).value());
  EXPECT_EQ(bound.comm_order, CommOrder::interleaved);
  EXPECT_EQ(bound.helpers, 8) << "the product has time";
  p.k = 8192;
  const FusedParams free = chosen(plan_fused(p, gpu, {.sums = SumsIn::pass}).value());
  EXPECT_EQ(free.comm_order, CommOrder::ring);
  EXPECT_EQ(free.helpers, 2);
  p.m = 64, p.n = 512;
  EXPECT_EQ(chosen(plan_fused(p, gpu, {.sums = SumsIn::pass}).value()).helpers, 0)
      << "one wave has nothing beside it to sum";
  const Plan asked = plan_fused(p, gpu, {.sums = SumsIn::pass, .comm_order = CommOrder::interleaved}).value();
  EXPECT_EQ(chosen(asked).comm_order, CommOrder::interleaved);
}

TEST(FusedPlan, AColumnBandOfAllShardsIsCompleteBeforeTheNextBegins) {
  const FusedParams params{.tile = {.order = {Raster::along_m, 2, 1, 1, 0}}, .sums = SumsIn::pass};
  const Problem p{.op = Op::gemm_allreduce, .world = 4, .m = 256, .n = 320, .k = 40};
  const Plan plan = plan_fused(p, machine(32), params).value();
  for (int rank = 0; rank < p.world; ++rank) {
    const Gemm& gemm = gemm_of(plan, rank);
    const TileNotify& notify = gemm.notify.front();
    ASSERT_EQ(notify.ends.size(), 5u * 4u);  // ten columns of tiles in twos, four shards
    for (std::size_t run = 0; run < notify.ends.size(); ++run) {
      EXPECT_EQ(notify.entries[run], static_cast<int>(run / 4));
      EXPECT_EQ(notify.owners[run], (rank + 1 + static_cast<int>(run % 4)) % 4);
      const std::int64_t position = notify.ends[run] - 1;
      EXPECT_EQ(gemm.grid.tile(position).n / 2, static_cast<std::int64_t>(run / 4));
      EXPECT_EQ(targets(plan, rank, position), std::set<std::int32_t>{notify.owners[run]});
    }
    // Whoever sums goes by the same columns, and helpers wait for the first.
    const Lane& beside = plan.ranks[static_cast<std::size_t>(rank)].lanes[1];
    const auto& pass = std::get<Elementwise>(beside.steps.back());
    EXPECT_EQ(std::get<Await>(beside.steps.front()).target, pass.gates[0].targets[0]);
    for (std::int64_t item = 0; item < pass.grid.positions(); ++item)
      EXPECT_EQ(group_of(pass.gates[0].ends, item), pass.grid.tile(item).n / 2);
  }
  EXPECT_TRUE(verify(plan));
}

TEST(FusedPlan, TakesTheMachinesOrderWhereItLeavesNothingOver) {
  Machine ordered = machine(32);
  ordered.order = {Raster::along_m, 8, 2, 1, 0};
  const auto rows = [&](std::int64_t m) {
    return gemm_of(plan_fused(problem(Op::gemm_reducescatter, 4, m), ordered, {}).value(), 0).grid.rows;
  };
  EXPECT_EQ(rows(4 * 32), 4 * 32);  // two tiles a shard
  EXPECT_EQ(rows(4 * 48), 4 * 48);  // three: no clusters of two, which would make them four
}

TEST(FusedPlan, AWaveOfAGatherReadsAboutAsManyRowsAsColumns) {
  Machine wide = machine(128);
  wide.order = {Raster::along_m, 8, 2, 1, 0};
  for (const int shard_tiles : {8, 16, 24, 6}) {
    const Problem gather{
        .op = Op::allgather_gemm, .world = 4, .m = std::int64_t{4} * shard_tiles * 16, .n = 56 * 32, .k = 40};
    const Plan plan = plan_fused(gather, wide, {}).value();
    const TileGrid& grid = gemm_of(plan, 1).grid;
    std::set<std::int64_t> rows, cols;
    for (std::int64_t position = 0; position < 128; ++position) {
      rows.insert(grid.tile(position).m);
      cols.insert(grid.tile(position).n);
    }
    EXPECT_LE(rows.size() + cols.size(), 30u) << shard_tiles << " tiles down a shard";
  }
}

TEST(FusedPlan, TheOwnShardIsCopiedByTheWorkersWhoeverBringsTheOthers) {
  for (const Mover mover : {Mover::copy_engine, Mover::store}) {
    const Plan plan = plan_fused(problem(Op::allgather_gemm, 3, 300), machine(4), {.mover = mover}).value();
    for (const RankPlan& rank : plan.ranks)
      for (const Lane& lane : rank.lanes)
        for (const Step& step : lane.steps)
          if (const auto* copy = std::get_if<Copy>(&step)) {
            EXPECT_NE(copy->from.rank, copy->to.rank);
          }
  }
}

TEST(FusedPlan, AtEveryStepShardsMoveBetweenDifferentRanks) {
  for (const CommOrder order : {CommOrder::ring, CommOrder::reverse, CommOrder::interleaved})
    for (const bool pull : {false, true})
      for (const int world : {2, 3, 6}) {
        const FusedParams params{.pull = pull, .comm_order = order};
        const Plan plan =
            plan_fused(problem(Op::allgather_gemm, world, 32 * world), machine(4), params).value();
        std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> moves(
            static_cast<std::size_t>(world));
        test::for_each_step(plan, [&](const test::At& at, const Step& step) {
          if (const auto* copy = std::get_if<Copy>(&step))
            moves[static_cast<std::size_t>(at.rank)].emplace_back(copy->from.rank, copy->to.rank);
          const auto* const pass = std::get_if<Elementwise>(&step);
          if (pass != nullptr && pass->from.front().slice.rank != pass->to.slice.rank)
            moves[static_cast<std::size_t>(at.rank)].emplace_back(pass->from.front().slice.rank,
                                                                  pass->to.slice.rank);
        });
        ASSERT_FALSE(moves[0].empty());
        for (std::size_t i = 0; i < moves[0].size(); ++i) {
          std::set<std::int32_t> sources, dests;
          for (const auto& of_rank : moves) {
            ASSERT_EQ(of_rank.size(), moves[0].size());
            EXPECT_TRUE(sources.insert(of_rank[i].first).second);
            EXPECT_TRUE(dests.insert(of_rank[i].second).second);
          }
        }
        for (int rank = 0; rank < world; ++rank) {  // the GEMM begins with rows that are there
          const Gemm& gemm = gemm_of(plan, rank);
          EXPECT_EQ(gemm.a_rows.run_at(gemm.grid.rect(gemm.grid.tile(0)).row, 1).matrix_row / 32, rank);
        }
      }
}

/// Rank and first row (of its shard) of the rows that a rank's GEMM comes to, in order, without repetition.
std::vector<std::pair<std::int64_t, std::int64_t>> visited(const Plan& plan, int rank) {
  const Gemm& gemm = gemm_of(plan, rank);
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  for (std::int64_t position = 0; position < gemm.grid.positions(); ++position) {
    const TileRect tile = gemm.grid.rect(gemm.grid.tile(position));
    if (tile.rows == 0 || tile.cols == 0) continue;
    const std::int64_t row = gemm.a_rows.run_at(tile.row, 1).matrix_row, shard = plan.problem().shard_rows();
    if (row < 0) continue;
    const std::pair<std::int64_t, std::int64_t> at{row / shard, row % shard};
    if (rows.empty() || rows.back() != at) rows.push_back(at);
  }
  return rows;
}

TEST(FusedPlan, TilesFollowTheOrderInWhichCommunicationTilesCome) {
  Machine tall = machine(4);
  tall.tile_rows = 8;
  FusedParams params{.comm_rows = 8};
  const Problem p = problem(Op::allgather_gemm, 3, 48);
  using Order = std::vector<std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(visited(plan_fused(p, tall, params).value(), 1),
            (Order{{1, 0}, {1, 8}, {2, 0}, {2, 8}, {0, 0}, {0, 8}}));
  params.comm_order = CommOrder::reverse;
  EXPECT_EQ(visited(plan_fused(p, tall, params).value(), 1),
            (Order{{1, 0}, {1, 8}, {0, 0}, {0, 8}, {2, 0}, {2, 8}}));
  params.comm_order = CommOrder::interleaved;
  EXPECT_EQ(visited(plan_fused(p, tall, params).value(), 1),
            (Order{{1, 0}, {2, 0}, {0, 0}, {1, 8}, {2, 8}, {0, 8}}));
}

TEST(FusedPlan, AnMlpBeginsWithTheOwnRowsAndEndsWithThem) {
  const Problem p{.op = Op::mlp, .world = 4, .m = 100, .n = 40, .k = 16, .inner = 24};
  const Plan plan = plan_fused(p, machine(4), {}).value();
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<const Gemm*> gemms;
    for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
      for (const Step& step : lane.steps)
        if (const auto* gemm = std::get_if<Gemm>(&step)) gemms.push_back(gemm);
    ASSERT_EQ(gemms.size(), 2u);
    const auto shard_at = [&](const Gemm& gemm, std::int64_t position) {
      return gemm.grid.tile(position).m * gemm.grid.tile_rows / gemm.a_rows.pitch;
    };
    EXPECT_EQ(shard_at(*gemms[0], 0), rank);
    EXPECT_EQ(shard_at(*gemms[1], 0), (rank + 1) % 4);
    EXPECT_EQ(shard_at(*gemms[1], gemms[1]->grid.positions() - 1), rank);
  }
}

TEST(FusedPlan, SumsAreInRankOrderBesideTheGemmAndAfterIt) {
  const Plan plan = plan_fused(problem(Op::gemm_reducescatter, 4, 200), machine(64), {.helpers = 2}).value();
  EXPECT_EQ(chosen(plan).helpers, 2);
  for (const RankPlan& rank : plan.ranks) {
    ASSERT_EQ(rank.lanes.size(), 2u);
    std::vector<const Elementwise*> passes;
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps)
        if (const auto* pass = std::get_if<Elementwise>(&step)) passes.push_back(pass);
    ASSERT_EQ(passes.size(), 2u);
    EXPECT_EQ(passes[0]->queue, passes[1]->queue);
    EXPECT_GE(passes[0]->queue, 0);
    EXPECT_EQ(passes[0]->resources.most + passes[1]->resources.most, 64);
    for (std::size_t s = 1; s < passes[0]->from.size(); ++s)
      EXPECT_GT(passes[0]->from[s].slice.row, passes[0]->from[s - 1].slice.row);
  }
  EXPECT_TRUE(verify(plan));
}

TEST(FusedPlan, SumsThatAnOutputCannotTakeGoOnToItBandByBand) {
  FusedParams params{.tile = {.order = {Raster::along_m, 1, 1, 1, 0}},  // bands of columns
                     .helpers = 4,
                     .unregistered = true};
  const Problem p = problem(Op::gemm_allreduce, 4, 200);
  const Plan plan = plan_fused(p, machine(64), params).value();
  EXPECT_TRUE(verify(plan));
  EXPECT_TRUE(remote_user_buffers(plan).empty());
  for (const RankPlan& rank : plan.ranks) {
    ASSERT_EQ(rank.lanes.size(), 3u);
    EXPECT_EQ(rank.lanes[2].name, "fill");
    const auto& beside = std::get<Elementwise>(rank.lanes[2].steps.back());
    const auto& behind = std::get<Elementwise>(rank.lanes[0].steps.back());
    EXPECT_EQ(beside.queue, behind.queue);
    EXPECT_EQ(beside.resources.most, 1) << "a helper in eight, but one";
    ASSERT_EQ(behind.gates.size(), 1u);
    const TileGate& gate = behind.gates.front();
    EXPECT_EQ(gate.ends.size(), 3u * 4) << "a band of columns of each shard";
    EXPECT_EQ(std::set<std::int32_t>(gate.entries.begin(), gate.entries.begin() + 4),
              (std::set<std::int32_t>{0, 3, 6, 9}))
        << "the first band of all ranks comes first";
    EXPECT_EQ(find_buffer(plan, Role::out), behind.to.slice.buffer);
  }
  params.unregistered = false;
  EXPECT_FALSE(remote_user_buffers(plan_fused(p, machine(64), params).value()).empty());
}

TEST(FusedPlan, RowsThatAnOutputCannotTakeGoOnToItBandByBand) {
  Problem p = problem(Op::gemm_alltoall, 3, 100);
  std::vector<std::vector<std::int32_t>> dest(3);
  for (int row = 0; row < 100; ++row) dest[0].push_back(row % 3), dest[1].push_back(row % 2);
  p.routing = std::make_shared<Routing>(dest);  // the last rank has no rows to send
  const Plan plan = plan_fused(p, machine(64), {.unregistered = true}).value();
  EXPECT_TRUE(verify(plan));
  EXPECT_TRUE(remote_user_buffers(plan).empty());
  EXPECT_EQ(chosen(plan).helpers, 2);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(gemm_of(plan, rank).resources.most, 62);
    const auto& lanes = plan.ranks[static_cast<std::size_t>(rank)].lanes;
    ASSERT_EQ(lanes.size(), 2u);
    const auto& pass = std::get<Elementwise>(lanes[0].steps.back());
    EXPECT_EQ(pass.queue, std::get<Elementwise>(lanes[1].steps.back()).queue);
    ASSERT_EQ(pass.gates.size(), 3u) << "of each rank";
    EXPECT_EQ(pass.gates[0].entries, (std::vector<std::int32_t>{0, 1, 2})) << "96 columns, 32 a tile";
    EXPECT_EQ(pass.gates[2].targets, (std::vector<std::uint32_t>{0, 0, 0}));
  }
  EXPECT_EQ(chosen(plan_fused(p, machine(64), {}).value()).helpers, 0);
}

TEST(FusedPlan, ShardsOfMatricesThatPeersDoNotReachAreSent) {
  const FusedParams params{.pull = true, .unregistered = true};
  const Plan plan = plan_fused(problem(Op::allgather_gemm, 4, 200), machine(64), params).value();
  EXPECT_FALSE(chosen(plan).pull);
  EXPECT_TRUE(remote_user_buffers(plan).empty());
}

TEST(FusedPlan, GoesWithoutHelpersAndInOneOrderOnAllRanks) {
  const FusedParams params{.helpers = FusedParams::no_helpers, .comm_order = CommOrder::same};
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce}) {
    const Plan plan = plan_fused(problem(op, 4, 200), machine(64), params).value();
    EXPECT_EQ(chosen(plan).helpers, FusedParams::no_helpers);
    EXPECT_EQ(plan_from_json(to_json(plan)).params, plan.params);
    for (const RankPlan& rank : plan.ranks) EXPECT_EQ(rank.lanes.size(), 1u) << "nobody sums beside the GEMM";
    EXPECT_TRUE(verify(plan));
  }
  EXPECT_FALSE(plan_fused(problem(Op::allgather_gemm, 4, 200), machine(64), params))
      << "a rank gathers its own rows first";
}

TEST(FusedPlan, OneShotHasNothingToRotate) {
  Machine slow = machine(8);
  slow.link = {10, 50};  // so slow to start that it would be one shot
  FusedParams params{.comm_order = CommOrder::same};
  const FusedParams ordered = chosen(*plan_fused(problem(Op::gemm_allreduce, 4, 8), slow, params));
  EXPECT_FALSE(ordered.one_shot) << "an order was asked for";
  EXPECT_EQ(ordered.comm_order, CommOrder::same);
  params.one_shot = true;
  const Plan plan = plan_fused(problem(Op::gemm_allreduce, 4, 8), slow, params).value();
  EXPECT_EQ(chosen(plan).comm_order, CommOrder::ring);
}

/// Sources that the pass with the norm sums on each rank.
std::vector<std::size_t> summed_with_the_norm(const Plan& plan) {
  std::vector<std::size_t> sources;
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps)
        if (const auto* pass = std::get_if<Elementwise>(&step); pass != nullptr && pass->norm.enabled)
          sources.push_back(pass->from.size());
  return sources;
}

TEST(FusedPlan, OneShotSumsInThePassOfANorm) {
  Problem normed = problem(Op::gemm_allreduce, 3, 64);
  normed.norm = {true, true};
  const auto plan = [&](std::int32_t helpers) {
    return plan_fused(normed, machine(8), {.helpers = helpers, .one_shot = true}).value();
  };
  const Plan at_once = plan(FusedParams::no_helpers), apart = plan(2);
  EXPECT_EQ(summed_with_the_norm(at_once), std::vector<std::size_t>(3, 3));
  EXPECT_EQ(summed_with_the_norm(apart), std::vector<std::size_t>(3, 1)) << "helpers sum beside the product";
  EXPECT_LT(at_once.buffers.size(), apart.buffers.size()) << "sums need no buffer";
  EXPECT_TRUE(verify(at_once));
  EXPECT_TRUE(verify(apart));
}

TEST(FusedPlan, OneShotIsForFewRowsOnASlowToStartLink) {
  Machine slow = machine(8);
  slow.link = {10, 50};  // GB/s, us
  EXPECT_TRUE(chosen(*plan_fused(problem(Op::gemm_allreduce, 4, 8), slow, {})).one_shot);
  EXPECT_FALSE(chosen(*plan_fused(problem(Op::gemm_allreduce, 4, 8192), slow, {})).one_shot);
}

Problem large(Op op, int world, std::int64_t m, std::int64_t k) {
  return {.op = op, .world = world, .m = m, .n = 8192, .k = k, .dtype = DType::bf16};
}

TEST(FusedPlan, OneShotOfTwoRanksIsForFewSums) {
  const Machine two = machine_from_spec("h200x8");
  const auto in_one_shot = [&](std::int64_t m, std::int64_t k, const FusedParams& params = {}) {
    return chosen(*plan_fused(large(Op::gemm_allreduce, 2, m, k), two, params)).one_shot;
  };
  EXPECT_TRUE(in_one_shot(64, 1024));
  EXPECT_FALSE(in_one_shot(2048, 1024)) << "twice the sums, and as many bytes";
  EXPECT_FALSE(in_one_shot(2048, 1024, {.unregistered = true})) << "epilogues store own rows to the output";
  EXPECT_TRUE(in_one_shot(2048, 1024, {.sums = SumsIn::pass, .unregistered = true}))
      << "behind a pass, two hops would fill the output";
  EXPECT_FALSE(in_one_shot(512, 1024, {.stage_fp32 = true})) << "twice the bytes";
  EXPECT_TRUE(in_one_shot(512, 1024));
}

TEST(FusedPlan, PartsOfManyRanksAreSummedInAPass) {
  Machine machine = machine_from_spec("h200x8");
  const auto sums = [&](int world) {
    return chosen(*plan_fused(large(Op::gemm_reducescatter, world, 8192, 3584), machine, {})).sums;
  };
  EXPECT_EQ(sums(2), SumsIn::epilogue) << "the only part lands while the tile is multiplied";
  EXPECT_EQ(sums(3), SumsIn::epilogue) << "the product waits for one part, and a pass reads three";
  EXPECT_EQ(sums(4), SumsIn::pass) << "the product waits for two parts of each tile";
  machine.parts_gbps = 0;
  EXPECT_EQ(sums(4), SumsIn::epilogue) << "the machine does not say what they take";
}

TEST(FusedPlan, AsManySumForAllAsKeepUpWithTheProduct) {
  const Machine machine = machine_from_spec("h200x8");
  const auto helpers = [&](Op op, std::int64_t m, std::int64_t k) {
    return chosen(*plan_fused(large(op, 4, m, k), machine, {.sums = SumsIn::pass})).helpers;
  };
  EXPECT_EQ(helpers(Op::gemm_allreduce, 8192, 3584), 16);
  EXPECT_EQ(helpers(Op::gemm_allreduce, 8192, 7168), 8) << "twice as long";
  EXPECT_EQ(helpers(Op::gemm_allreduce, 8192, 28672), 4);
  EXPECT_EQ(helpers(Op::gemm_allreduce, 2048, 3584), 4) << "of few waves each helper costs one";
  EXPECT_EQ(helpers(Op::gemm_reducescatter, 8192, 3584), 4);
  EXPECT_EQ(helpers(Op::gemm_reducescatter, 8192, 1024), 16) << "the product has time";
}

TEST(FusedPlan, IdleWorkersOfTheLastWaveCopySumsOfTheOtherRank) {
  const Machine machine = machine_from_spec("h200x8");
  const auto helpers = [&](int world, std::int64_t m, std::int64_t k, std::int32_t asked = 0) {
    return chosen(*plan_fused(large(Op::gemm_allreduce, world, m, k), machine,
                              {.helpers = asked, .sums = SumsIn::epilogue, .unregistered = true}))
        .helpers;
  };
  EXPECT_EQ(helpers(2, 2048, 3584), 4) << "512 tiles: 128 workers take as many waves as 132";
  EXPECT_EQ(helpers(2, 2048, 14336), 2) << "more would be idle";
  EXPECT_EQ(helpers(2, 8192, 1024), 0) << "links hold the sums back";
  EXPECT_EQ(helpers(2, 4224, 3584), 0) << "all workers have a tile in the last wave";
  EXPECT_EQ(helpers(4, 2048, 14336), 0) << "sums arrive in the last quarter";
  EXPECT_EQ(helpers(4, 2048, 14336, 6), 6);
}

TEST(FusedPlan, AScatterEndsWithAWaveOfOwnTilesWhereLinksKeepUp) {
  const Machine machine = machine_from_spec("h200x8");
  const auto owners_at_the_end = [&](Op op, std::int64_t k, CommOrder order = CommOrder::ring) {
    const Plan plan =
        plan_fused(large(op, 4, 2048, k), machine, {.sums = SumsIn::pass, .comm_order = order}).value();
    const Gemm& gemm = gemm_of(plan, 1);
    const RowMap& rows = std::get<placement::Owners>(gemm.out.form).rows;
    std::set<std::int64_t> owners;
    for (std::int64_t i = gemm.grid.positions() - gemm.resources.most; i < gemm.grid.positions(); ++i)
      owners.insert(rows.run_at(gemm.grid.tile(i).m * gemm.grid.tile_rows, 1).matrix_row / 512);
    return owners;
  };
  EXPECT_EQ(owners_at_the_end(Op::gemm_reducescatter, 3584), std::set<std::int64_t>{1});
  EXPECT_GT(owners_at_the_end(Op::gemm_reducescatter, 1024).size(), 1u) << "the links do not";
  EXPECT_GT(owners_at_the_end(Op::gemm_reducescatter, 3584, CommOrder::interleaved).size(), 1u);
  EXPECT_GT(owners_at_the_end(Op::gemm_allreduce, 3584).size(), 1u)
      << "sums that go to all have to begin early";
}

TEST(FusedPlan, RowsDealtInBlocksAreGatheredInTheirOrder) {
  Problem p = problem(Op::allgather_gemm, 2, 64);
  p.row_order = RowOrder::block_cyclic, p.row_block = 4;
  const Plan plan = plan_fused(p, machine(4), {.comm_rows = 8}).value();
  const Gemm* product = nullptr;
  for (const Step& step : plan.ranks[1].lanes[0].steps)
    if (const auto* gemm = std::get_if<Gemm>(&step)) product = gemm;
  ASSERT_NE(product, nullptr);
  EXPECT_EQ(product->a_rows.run_at(4, 4).matrix_row, 32) << "rows 4 to 7 are the first ones of rank 1";
  EXPECT_EQ(product->out.form, Placement::Form(placement::Matrix{RowMap::identity(64)}));
  // Each tile awaits pieces of both ranks; the own ones by workers are awaited, too.
  EXPECT_GE(product->gates.size(), 2u);
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
}

TEST(FusedPlan, InfeasibleIsAReason) {
  const auto reason = [](Problem p, Machine m, const FusedParams& params = {}) {
    const auto plan = plan_fused(p, m, params);
    return plan ? std::string() : plan.reason();
  };
  const Problem good = problem(Op::gemm_reducescatter, 4, 64);
  Machine apart = machine(4);
  apart.peer_memory = false;
  EXPECT_NE(reason(good, apart).find("is not accessible here"), std::string::npos);
  Problem dealt = good;
  dealt.row_order = RowOrder::block_cyclic, dealt.row_block = 4;
  EXPECT_NE(reason(dealt, machine(4)).find("signal"), std::string::npos);
  EXPECT_NE(reason(good, machine(4), {.helpers = 4}).find("leave none"), std::string::npos);
  EXPECT_NE(reason(good, machine(4), {.one_shot = true}).find("gemm+allreduce"), std::string::npos);
  EXPECT_FALSE(reason(problem(Op::allgather_gemm, 4, 64), machine(4), {.comm_rows = -1}).empty());
}

}  // namespace
}  // namespace shingle::fused_plan_test
