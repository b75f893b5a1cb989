#include "shingle/verify/wellformed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "sample_plans.hpp"
#include "shingle/plan/placement.hpp"

namespace shingle::plan_wellformed_test {
namespace {

using ::testing::HasSubstr;

template <class S>
S& step(Plan& plan, int rank, int lane, int index) {
  return std::get<S>(plan.ranks[rank].lanes[lane].steps[index]);
}
Gemm& gemm(Plan& plan) {
  return step<Gemm>(plan, 0, 0, 1);
}
Elementwise& norm(Plan& plan) {
  return step<Elementwise>(plan, 0, 0, 2);
}
Elementwise& reduce(Plan& plan) {
  return step<Elementwise>(plan, 1, 0, 0);
}
placement::Subtiles& subtiles(Plan& plan) {
  return std::get<placement::Subtiles>(gemm(plan).out.form);
}
placement::Slots& slots(Plan& plan) {
  return std::get<placement::Slots>(reduce(plan).from[0].form);
}
placement::Matrix& matrix(Plan& plan) {
  return std::get<placement::Matrix>(reduce(plan).from[1].form);
}
placement::Pools& pools(Plan& plan) {
  return std::get<placement::Pools>(reduce(plan).from[2].form);
}
placement::Routed& routed(Plan& plan) {
  return std::get<placement::Routed>(norm(plan).to.form);
}
Collective& collective(Plan& plan, int index) {
  return step<Collective>(plan, 0, 1, index);
}

TEST(WellFormed, SamplesAre) {
  EXPECT_EQ(malformed(test::all_steps()), std::nullopt);
  for (const int world : {1, 2, 5, 16})
    for (const std::int64_t m : {1, 7, 100})
      for (const Plan& plan : test::planned(world, m))
        EXPECT_EQ(malformed(plan), std::nullopt) << describe(plan.work);
}

struct Case {
  const char* name;
  std::function<void(Plan&)> spoil;
  const char* says;
};

class Malformed : public ::testing::TestWithParam<Case> {};

TEST_P(Malformed, IsNamed) {
  Plan plan = test::all_steps();
  GetParam().spoil(plan);
  const auto found = malformed(plan);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(*found, HasSubstr(GetParam().says));
  EXPECT_EQ(found->find('\n'), std::string::npos);
}

const Case cases[] = {
    // The plan's tables.
    {"Problem", [](Plan& p) { p.problem().k = 0; }, "problem: k = 0 is outside"},
    {"World", [](Plan& p) { p.ranks.emplace_back(); }, "ranks: 3 of them, but the world has 2"},
    {"NoRanks", [](Plan& p) { p.ranks.clear(); }, "ranks: 0 of them, but the world has 2"},
    {"UnlikeRanks", [](Plan& p) { p.ranks.pop_back(); }, "ranks: 1 of them cannot stand for all 2: "},
    {"Workers", [](Plan& p) { p.workers = 0; }, "workers: 0 is outside"},
    {"ParamName", [](Plan& p) { p.params[0].name = "a\nb"; }, "params: holds control characters"},
    {"ParamNameLength", [](Plan& p) { p.params[0].name = std::string(257, 'a'); },
     "params: 257 characters, at most 256"},
    {"ParamValue", [](Plan& p) { p.params.back() = {"tile", "8x8\x1b[31m"}; },
     "params.tile: holds control characters"},
    {"Name", [](Plan& p) { p.buffers[0].name = "a\nb"; }, "buffers[0].name: holds control characters"},
    {"Depth", [](Plan& p) { p.buffers[7].depth = 3; }, "buffer 'staging': depth 3"},
    {"UserDepth", [](Plan& p) { p.buffers[0].depth = 2; }, "buffer 'a': a user's buffer has depth 1"},
    {"UserShape", [](Plan& p) { p.buffers[5].rows[1] = 6; },
     "buffer 'out': 6x4 on rank 1, but the problem asks for 5x4"},
    {"UserType", [](Plan& p) { p.buffers[5].dtype = DType::f32; },
     "buffer 'out': is f32, but the problem bf16"},
    {"UserTwice", [](Plan& p) { p.buffers[6].role = Role::out; },
     "buffer 'sum': a second buffer for the user's out"},
    {"UserMissing", [](Plan& p) { p.buffers[5].role = Role::internal; }, "buffers: none is the user's out"},
    {"NotAsked", [](Plan& p) { p.problem().epilogue.bias = false; },
     "buffer 'bias': the problem has no bias"},
    {"BufferRanks", [](Plan& p) { p.buffers[7].rows.push_back(1); }, "buffer 'staging': rows of 3 ranks"},
    {"BufferRows", [](Plan& p) { p.buffers[7].rows[0] = -1; }, "buffer 'staging': -1 rows"},
    {"Bytes", [](Plan& p) { p.buffers[7].rows = {std::int64_t{1} << 58, std::int64_t{1} << 58}; },
     "2^60 bytes"},
    {"Growth", [](Plan& p) { p.counters[0].growth.pop_back(); }, "counter 'done': growth on 1 ranks"},
    {"GrowsTooFast", [](Plan& p) { p.counters[0].growth[0][0] = 1u << 30; },
     "counter 'done': grows by 1073741824"},
    {"CommunicatorRank", [](Plan& p) { p.communicators[0].ranks[0] = 2; },
     "communicator 'world': 2 is none of the plan's 2 ranks"},
    {"CommunicatorTwice", [](Plan& p) { p.communicators[0].ranks[0] = 0; },
     "communicator 'world': rank 0 twice"},
    {"CommunicatorEmpty", [](Plan& p) { p.communicators[0].ranks.clear(); },
     "communicator 'world': has no ranks"},
    {"IssueLane", [](Plan& p) { p.ranks[0].issue[0] = 3; }, "rank 0, issue: 3 is none of the plan's 3 lanes"},
    {"IssueCount", [](Plan& p) { p.ranks[0].issue[0] = 1; },
     "rank 0, issue: 2 steps of lane compute, which has 3"},
    // Slices.
    {"Buffer", [](Plan& p) { gemm(p).a.buffer = 9; },
     "rank 0, lane compute, step 1 (gemm): a.buffer: 9 is none of the plan's 9 buffers"},
    {"NoBuffer", [](Plan& p) { gemm(p).a.buffer = -1; }, "a.buffer: -1 is none"},
    {"Rank", [](Plan& p) { reduce(p).from[1].slice.rank = 2; }, "from[1].rank: 2 is none"},
    {"Rows", [](Plan& p) { ++gemm(p).a.row; }, "a: 6 rows from 1 on are not in 'a', which has 6 on rank 0"},
    {"NegativeRow", [](Plan& p) { gemm(p).a.row = -1; }, "a: 6 rows from -1 on"},
    {"HugeRow", [](Plan& p) { gemm(p).a.row = gemm(p).a.rows = INT64_MAX; }, "are not in 'a'"},
    {"Cols", [](Plan& p) { ++gemm(p).b.col; }, "b: 6 columns from 1 on are not in 'b'"},
    {"Foreign", [](Plan& p) { gemm(p).a.rank = 1; }, "a: in the memory of rank 1, not the step's own"},
    {"StoresToInput", [](Plan& p) { step<Fill>(p, 0, 0, 0).slice = {0, 0, 0, 1, 0, 1}; },
     "slice: stores to 'a', an input of the user"},
    // Tiled steps.
    {"TileSize", [](Plan& p) { gemm(p).grid.tile_cols = 0; }, "grid: tiles of 4x0"},
    {"LoopCount", [](Plan& p) { gemm(p).grid.loop_count = 9; }, "grid: 9 loops, at most 8"},
    {"LoopExtent", [](Plan& p) { gemm(p).grid.loops[0].extent = 0; }, "grid: loop 0 has extent 0"},
    {"LoopRotation", [](Plan& p) { gemm(p).grid.loops[0].rotation = 2; },
     "grid: loop 0 starts at 2, outside [0, 2)"},
    {"LoopsTooShort", [](Plan& p) { gemm(p).grid.loop_count = 1; }, "grid: the loops reach 1x2 of 2x2 tiles"},
    {"Positions", [](Plan& p) { gemm(p).grid.loops[0].extent = gemm(p).grid.loops[1].extent = 1 << 20; },
     "more than 2147483648 positions"},
    {"Depth of A and B", [](Plan& p) { gemm(p).a.rows = 5; }, "b: op(A) has 5 columns, op(B) 6 rows"},
    {"GridCols", [](Plan& p) { gemm(p).grid.cols = 3; }, "b: op(B) has 4 columns, but the grid 3"},
    {"Swiglu", [](Plan& p) { gemm(p).epilogue.activation = Activation::swiglu; },
     "but the grid 4 of gate and up each"},
    {"RowMap", [](Plan& p) { gemm(p).a_rows.stride = 5, gemm(p).a_rows.limit = 9; },
     "a_rows: reaches row 9 of 8"},
    {"RowMapWithout", [](Plan& p) { gemm(p).a_rows.without = 7; }, "a_rows: leaves out shard 7 of "},
    {"RowMapShort", [](Plan& p) { gemm(p).a_rows.len = 3; }, "a_rows: maps 6 rows, but the grid has 8"},
    {"RowMapBlock", [](Plan& p) { gemm(p).a_rows.block = 0; }, "a_rows: block 0"},
    {"RowMapHuge", [](Plan& p) { gemm(p).a_rows.base = INT64_MAX; },
     "a_rows: 9223372036854775807 is outside"},
    {"Bias", [](Plan& p) { gemm(p).bias.cols = 3; }, "bias: 1x3, not 1x4"},
    {"BiasUnused", [](Plan& p) { gemm(p).epilogue.bias = false; }, "bias: is given, but not used"},
    {"Parts", [](Plan& p) { subtiles(p).parts = 3; },
     "out.parts: tiles of 4 rows (the last of 0) have no 3 equal parts"},
    {"NoParts", [](Plan& p) { subtiles(p).parts = 0; }, "out.parts"},
    {"GroupsEnd", [](Plan& p) { subtiles(p).ends = {1, 3}; },
     "out.ends: the last group ends at 3, but the grid has 4 positions"},
    {"GroupsOrder", [](Plan& p) { subtiles(p).ends = {3, 1, 4}; }, "out.ends: 1 after 3"},
    {"NoGroups", [](Plan& p) { subtiles(p).ends.clear(); }, "out.ends: the last group ends at 0"},
    {"Slots", [](Plan& p) { reduce(p).from[0].slice.rows = 15; },
     "from[0].slice: 15 rows, but the tiles have 16"},
    {"SlotGroups", [](Plan& p) { slots(p).bases = {0, 4}, slots(p).ends = {1, 3}; },
     "from[0].ends: the last group ends at 3"},
    {"SlotBases", [](Plan& p) { slots(p).bases = {0}, slots(p).ends = {1, 4}; },
     "from[0].bases: 1 of them, but there are 2 groups"},
    {"SlotGroupRows", [](Plan& p) { slots(p).bases = {0, 5}, slots(p).ends = {1, 4}; },
     "from[0].bases: group 1 has 12 rows from 5 on, but the slice ends at 16"},
    {"SlotsCols", [](Plan& p) { reduce(p).from[0].slice.cols = 1; },
     "from[0].slice: 1 columns, but 2 are placed"},
    {"MatrixCols", [](Plan& p) { reduce(p).to.slice.cols = 3; }, "to.slice: 3 columns, but 4 are placed"},
    {"MatrixRows", [](Plan& p) { matrix(p).rows.base = 9, matrix(p).rows.limit = 17; },
     "from[1].rows: reaches row 17 of 16"},
    {"Pools", [](Plan& p) { pools(p).bases[3] = 23; },
     "from[2].bases: the pool of group 1 for destination 1 has 5 rows"},
    {"PoolCount", [](Plan& p) { pools(p).bases.pop_back(); },
     "from[2].bases: 3 of them, but there are 4 pools"},
    {"PoolSource", [](Plan& p) { pools(p).source = 2; }, "from[2].source: 2 is none"},
    {"PoolRows", [](Plan& p) { pools(p).source = 1; }, "from[2]: 8 rows, but rank 1 has 5 to send"},
    {"Routed", [](Plan& p) { routed(p).bases = {4}; }, "to.bases: 5 rows from 4 on, but the slice ends at 8"},
    {"RoutedDest", [](Plan& p) { routed(p).dest = -1; }, "to.bases: 1 of them, not 2"},
    {"Items", [](Plan& p) { reduce(p).count = 4; }, "count: 4 items from 1 on, but there are 4"},
    {"RowItems", [](Plan& p) { norm(p).first = 2; }, "count: -1 items from 2 on, but there are 1"},
    {"NoSource", [](Plan& p) { reduce(p).from.clear(); }, "from: nothing to read"},
    {"RowWiseCols", [](Plan& p) { norm(p).to.slice.cols = 2; }, "to.slice: 2 columns, but 4 are placed"},
    {"RowWiseHooks", [](Plan& p) { norm(p).gates = {{0, {2}, {1}}}; },
     "gates: a row-wise step has hooks only if its grid has one column of tiles"},
    {"Residual", [](Plan& p) { norm(p).norm.residual = false; }, "residual: is given, but not used"},
    {"NormWeight", [](Plan& p) { norm(p).norm_weight = {}; }, "norm_weight.buffer: -1 is none"},
    {"Epsilon", [](Plan& p) { norm(p).norm.epsilon = -1; }, "norm: epsilon -1"},
    {"GateTargets", [](Plan& p) { gemm(p).gates[0].targets.push_back(1); },
     "gates[0].targets: 2 of them for 1 groups"},
    {"GateEntries", [](Plan& p) { gemm(p).gates[0] = {0, {1, 2, 4}, {0, 0, 0}}; },
     "gates[0].ends: entry 2, but counter 'done' has 2 entries on rank 0"},
    {"NotifyRank", [](Plan& p) { gemm(p).notify[0].ranks[0] = 2; }, "notify[0].ranks: 2 is none"},
    {"NotifyTwice", [](Plan& p) { gemm(p).notify[0].ranks[0] = 0; }, "notify[0].ranks: rank 0 twice"},
    {"NotifySet", [](Plan& p) { gemm(p).notify[0].counter = 1; }, "notify[0].counter: tiles add"},
    {"Resources", [](Plan& p) { gemm(p).resources = {3, 2}; },
     "resources: at least 3 workers, but at most 2"},
    // Counters and communication.
    {"AwaitForeign", [](Plan& p) { step<Await>(p, 0, 1, 0).counter.rank = 1; },
     "step 0 (await): counter: on rank 1"},
    {"CounterEntry", [](Plan& p) { step<Await>(p, 0, 1, 0).counter.entry = 2; },
     "counter.entry: 2 is none of the 2 on rank 0"},
    {"CounterIndex", [](Plan& p) { step<Await>(p, 0, 1, 0).counter.counter = 2; },
     "counter: 2 is none of the plan's 2 counters"},
    {"NotifyNothing", [](Plan& p) { step<Notify>(p, 0, 2, 3).value = 0; }, "value: 0 is outside"},
    {"Communicator", [](Plan& p) { collective(p, 1).communicator = 2; }, "communicator: 2 is none"},
    {"NotInCommunicator", [](Plan& p) { p.communicators[1].ranks = {1}; },
     "communicator: 'alone' does not hold rank 0"},
    {"AllReduceRows", [](Plan& p) { collective(p, 1).recv = {7, 0, 8, 7, 0, 4}; },
     "recv: 7 rows, but 8 are sent"},
    {"AllReduceOverlap", [](Plan& p) { collective(p, 1).recv.row = 1; },
     "recv: overlaps send other than in place"},
    {"ReduceScatterRows", [](Plan& p) { collective(p, 2).recv.rows = 3; },
     "send: 8 rows are not 3 for each of 2 ranks"},
    {"AllGatherRows", [](Plan& p) { collective(p, 3).recv.rows = 5; },
     "recv: 5 rows are not 4 of each of 1 ranks"},
    {"AllToAllSum", [](Plan& p) { collective(p, 4).send_rows = {5, 2}; },
     "send_rows: they leave 1 rows of the slice"},
    {"AllToAllHuge", [](Plan& p) { collective(p, 4).recv_rows = {INT64_MAX, 10 - INT64_MAX}; },
     "recv_rows: 9223372036854775807 of 9 rows"},
    {"AllToAllRanks", [](Plan& p) { collective(p, 4).recv_rows = {9}; }, "recv_rows: 1 of them for 2 ranks"},
    {"CountsUnused", [](Plan& p) { collective(p, 1).send_rows = {4, 4}; },
     "send_rows: only an alltoall has counts by rank"},
    {"WholeRows", [](Plan& p) { collective(p, 1).send.cols = 2; },
     "send: columns 0 to 2 are not whole rows of 'staging'"},
    {"CollectiveType", [](Plan& p) { collective(p, 1).recv = {8, 0, 0, 8, 0, 4}; },
     "recv: rows of 4 f32, but sent are rows of 4 bf16"},
    {"Peer", [](Plan& p) { step<Exchange>(p, 0, 1, 5).sends[1].peer = 2; },
     "sends[1].peer: rank 2 is not in 'world'"},
    {"ReceivesIntoInput", [](Plan& p) { step<Exchange>(p, 0, 1, 5).receives[0].slice = {0, 0, 0, 1, 0, 8}; },
     "receives[0].slice: stores to 'a'"},
    {"CopyShape", [](Plan& p) { step<Copy>(p, 0, 2, 0).to.rows = 1; }, "to: 1x2, but from is 2x2"},
    {"CopyOverlap", [](Plan& p) { step<Copy>(p, 0, 2, 0).to = {7, 0, 1, 2, 1, 2}; }, "to: overlaps from"},
    {"BroadcastTwice", [](Plan& p) { step<Broadcast>(p, 0, 2, 1).to[1] = {7, 1, 4, 8, 0, 4}; },
     "to: both destinations overlap"},
    {"SwapInput", [](Plan& p) { step<Swap>(p, 0, 2, 2).a = {1, 0, 0, 2, 0, 4}; },
     "a: stores to 'b', an input"},
};

INSTANTIATE_TEST_SUITE_P(Plans, Malformed, ::testing::ValuesIn(cases), [](const auto& test) {
  std::string name = test.param.name;
  std::erase(name, ' ');
  return name;
});

// The closed forms of wellformed against the tiles one by one: of a placement that passes, every piece is in
// its slice.
TEST(WellFormed, BoundsAreTight) {
  int caught = 0;
  for (const Plan& plan : test::planned(3, 50)) {
    for (std::size_t r = 0; r < plan.ranks.size(); ++r)
      for (std::size_t l = 0; l < plan.ranks[r].lanes.size(); ++l)
        for (std::size_t s = 0; s < plan.ranks[r].lanes[l].steps.size(); ++s) {
          Plan shorter = plan;
          auto* pass = std::get_if<Elementwise>(&shorter.ranks[r].lanes[l].steps[s]);
          if (!pass || pass->grid.tiles() == 0) continue;
          Slice& slice = pass->from[0].slice;
          std::int64_t last = 0;
          for (std::int64_t i = 0; i < pass->grid.positions(); ++i)
            for_each_piece(pass->from[0], pass->grid, plan.routing(), i,
                           [&](const Piece& piece) { last = larger(last, piece.row + piece.rows); });
          EXPECT_LE(last, slice.row + slice.rows);
          slice.rows = last - slice.row;
          EXPECT_EQ(malformed(shorter), std::nullopt) << last << " rows are enough";
          if (--slice.rows < 0) continue;
          EXPECT_NE(malformed(shorter), std::nullopt) << "a row too few";
          ++caught;
        }
  }
  EXPECT_GT(caught, 20);
}

}  // namespace
}  // namespace shingle::plan_wellformed_test
