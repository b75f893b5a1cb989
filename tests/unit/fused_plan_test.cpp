// What the plans of `fused` promise: an order in which ranks never meet at one target, and the own shard
// where it waits for nobody.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "backend/remote.hpp"
#include "fused_plans.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/verify/verify.hpp"
#include "support/plan_edit.hpp"
#include "workload/routing_patterns.hpp"

namespace shingle::fused_plan_test {
namespace {

using namespace test::fused;

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

TEST(FusedPlan, TokensOfSlicedExpertsAreSortedFirstWhereLinksAreFast) {
  Machine gpus = machine_from_spec("h200x8");
  Problem p{.op = Op::moe_tp, .world = 2, .m = 4096, .n = 4096, .k = 4096, .dtype = DType::bf16};
  p.inner = 7168;
  p.experts = {.count = 8, .topk = 2};
  p.routing = std::make_shared<Routing>(
      make_topk_routing(RoutingPattern::balanced, 2, {p.m, p.m}, p.experts, 1, ExpertSplit::by_slice));
  const FusedParams fast = chosen(plan_fused(p, gpus, {}).value());
  EXPECT_EQ(fast.mover, Mover::store);
  EXPECT_EQ(fast.helpers, FusedParams::no_helpers);
  EXPECT_GT(chosen(plan_fused(p, gpus, {.helpers = 8}).value()).helpers, 0) << "as asked";
  gpus.link.gbps = 10;
  const FusedParams slow = chosen(plan_fused(p, gpus, {}).value());
  EXPECT_EQ(slow.mover, Mover::automatic) << "by copy engines";
  EXPECT_GT(slow.helpers, 0) << "the product hides the exchange";
}

}  // namespace
}  // namespace shingle::fused_plan_test
