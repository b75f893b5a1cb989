// Plans of some ranks that stand for all: when there are any, what they take, and who refuses them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/trace.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/plain_machine.hpp"

namespace shingle::symmetry_test {
namespace {

using test::machine;
using testing::HasSubstr;

Machine of_nodes(int ranks) {
  Machine nodes = machine();
  nodes.topology.ranks_per_node = ranks;
  nodes.topology.node = {1, 2};
  return nodes;
}

Problem ring(int world) {
  return {.op = Op::gemm_reducescatter, .world = world, .m = world, .n = 100, .k = 50};
}

std::string refused(const Plan& plan, const Machine& on, const SimOptions& options = {}) {
  try {
    simulate(plan, on, options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Symmetry, LinksRepeatAfterNodesAndGroups) {
  Topology topology;
  EXPECT_EQ(topology.period(7), 1);
  topology.ranks_per_node = 8;
  EXPECT_EQ(topology.period(8), 1) << "one node";
  EXPECT_EQ(topology.period(24), 8);
  EXPECT_EQ(topology.period(20), 20) << "the last node is not full";
  topology.pair = {100, 1};
  topology.pair_ranks = 3;
  EXPECT_EQ(topology.period(3), 1) << "one group";
  EXPECT_EQ(topology.period(48), 24);
}

/// A row's product is ten tiles, one wave of 10 us; each message, 2.4 us, goes while the next row's is made.
TEST(Symmetry, ARingOfFourThousandRanks) {
  const Plan plan = plan_ring(ring(4096), machine(), {.slices = 1}).value();
  ASSERT_EQ(plan.ranks.size(), 1u);
  EXPECT_TRUE(is_symmetric(params_of(plan)));
  EXPECT_EQ(malformed(plan), std::nullopt);
  const Simulated run = simulate(plan, machine());
  EXPECT_NEAR(run.makespan_us, 4096 * 10.0, 4096 * 0.01);
  EXPECT_EQ(run.computing_us.size(), 1u);
  EXPECT_LT(run.events, 4096 * 40) << "in proportion to the ranks";
}

TEST(Symmetry, IsOfWhatAllRanksDoAlike) {
  EXPECT_EQ(plan_ring(ring(max_world), machine())->ranks.size(), 64u)
      << "the largest that is planned in full";
  EXPECT_EQ(plan_ring(ring(72), of_nodes(8))->ranks.size(), 8u);
  EXPECT_THAT(plan_ring(ring(68), of_nodes(8)).reason(),
              HasSubstr("68 ranks do not fill the nodes of plain"));
  Problem ragged = ring(128);
  ragged.m = 129;
  EXPECT_THAT(plan_ring(ragged, machine()).reason(), HasSubstr("not a multiple of 128 ranks"));
  EXPECT_THAT(plan_fused(ring(65), machine()).reason(), HasSubstr("fused reaches into other ranks' memory"));
  EXPECT_THAT(plan_copy_engine(ring(65), machine()).reason(), HasSubstr("copy-engine reaches into"));
  EXPECT_THAT(plan_fused(ring(4), machine(), {.symmetric = true}).reason(), HasSubstr("it plans all ranks"));
  EXPECT_TRUE(plan_fused(ring(4), machine()));
}

TEST(Symmetry, IsRefusedWhereRanksDiffer) {
  const Plan plan = plan_ring(ring(4), machine(), {.symmetric = true}).value();
  EXPECT_EQ(refused(plan, machine()), "");
  EXPECT_THAT(refused(plan, machine(), {.noise = 0.1}),
              HasSubstr("noise makes ranks differ, but 1 ranks stand for all"));
  EXPECT_THAT(refused(plan, machine(), {.slowdown = {1, 1, 1, 2}}), HasSubstr("slowdown makes"));
  EXPECT_THAT(refused(plan, of_nodes(2)),
              HasSubstr("whose links repeat every 2 ranks: make the plan for this machine"));
  Machine cores = machine();
  cores.contention.steals = 0.5;
  EXPECT_THAT(refused(plan, cores), HasSubstr("sharing of cores makes"));
}

TEST(Symmetry, IsNeitherProvenNorDrawnInUnits) {
  const Plan plan = plan_ring(ring(4), machine(), {.symmetric = true}).value();
  const Proof proof = verify(plan);
  EXPECT_EQ(proof.rule, "symmetry");
  EXPECT_THAT(proof.failure, HasSubstr("1 ranks stand for all 4"));
  EXPECT_THROW((void)schematic(plan), InvalidArgument);
  EXPECT_THAT(to_text(plan), HasSubstr("1 ranks stand for all 4: rank r does as rank r mod 1\n"));
}

TEST(Symmetry, MoreRanksThanCanBeProven) {
  Plan plan = plan_sequential({.op = Op::gemm, .world = 2, .m = 65, .n = 8, .k = 8}, machine()).value();
  plan.problem().world = 65;
  plan.ranks.resize(65);
  plan.communicators.clear();
  for (Buffer& buffer : plan.buffers) buffer.rows.assign(65, buffer.rows.front());
  ASSERT_EQ(malformed(plan), std::nullopt);
  const Proof proof = verify(plan);
  EXPECT_EQ(proof.rule, "size");
  EXPECT_EQ(proof.failure, "the plan has 65 ranks; at most 64 can be proven");
}

/// What names other ranks' memory by number means another rank for each that is stood for.
TEST(Symmetry, HasNoCopyEnginesNorPartsOfTheWorld) {
  Plan plan = plan_ring(ring(4), machine(), {.symmetric = true}).value();
  plan.communicators[0].ranks.pop_back();
  EXPECT_THAT(malformed(plan).value_or(""), HasSubstr("communicator 'world': holds 3 of 4 ranks"));
  plan = plan_ring(ring(4), machine(), {.symmetric = true}).value();
  plan.ranks[0].lanes.push_back({LaneKind::copy, "engine", {}});
  EXPECT_THAT(malformed(plan).value_or(""), HasSubstr("launching threads differ from rank to rank"));
}

}  // namespace
}  // namespace shingle::symmetry_test
