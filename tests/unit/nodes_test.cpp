// Several nodes: ranks reach each other's memory within a node only, so peer plans across nodes are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"
#include "tune/params.hpp"

namespace shingle::nodes_test {
namespace {

using testing::HasSubstr;

const Problem across{
    .op = Op::gemm_reducescatter, .world = 16, .m = 4096, .n = 4096, .k = 1024, .dtype = DType::bf16};

Machine node() {
  return read_machine(SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json");
}

Machine two_nodes() {
  return machine_of_nodes(node(), 2, {50, 5});
}

Problem of(Op op) {
  Problem problem = across;
  problem.op = op;
  return problem;
}

TEST(Nodes, RefusePeerPlans) {
  const Machine machine = two_nodes();
  Problem few = across;
  few.m = 16;
  for (const Result<Plan>& plan : {plan_fused(across, machine), plan_fused(of(Op::allgather_gemm), machine),
                                   plan_copy_engine(across, machine), plan_low_latency(few, machine),
                                   plan_ring(across, machine, {.engines = 1})}) {
    ASSERT_FALSE(plan);
    EXPECT_THAT(plan.reason(), HasSubstr("not accessible from one node of 8 ranks to another"));
  }
}

TEST(Nodes, TuneOnlyPlansOfMessagesAndCollectives) {
  const Machine machine = two_nodes();
  for (const Mechanism mechanism : {Mechanism::fused, Mechanism::copy_engine})
    EXPECT_FALSE(tune(across, machine, mechanism)) << name(mechanism);
  const Result<Tuned> ring = tune(across, machine, Mechanism::ring);
  ASSERT_TRUE(ring);
  EXPECT_EQ(std::get<RingParams>(params_of(ring->plan)).engines, 0);
  for (const Mechanism mechanism : {Mechanism::sequential, Mechanism::chunked, Mechanism::signal})
    EXPECT_TRUE(tune(across, machine, mechanism)) << name(mechanism);
}

TEST(Nodes, ServeAWorldWithinOneNode) {
  Problem within = across;
  within.world = 8;
  EXPECT_TRUE(plan_fused(within, two_nodes()));
}

TEST(Nodes, SimulateNoPeerPlanOfAnotherMachine) {
  Problem within = across;
  within.world = 4;
  const Plan plan = plan_fused(within, node()).value();
  Machine pairs = node();
  pairs.topology.ranks_per_node = 2;
  pairs.topology.node = {50, 5};
  try {
    simulate(plan, pairs);
    FAIL() << "a fused plan was simulated across nodes";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("are in different nodes of h200x8"));
  }
}

/// Chunks pass through the node and between nodes at once.
TEST(Nodes, AreAPipeline) {
  const Machine machine = two_nodes(), one = node();
  for (const Traffic traffic : {Traffic::allreduce, Traffic::allgather, Traffic::reducescatter}) {
    const auto us = [&](const Machine& of, int ranks, double bytes) {
      return collective_us(of, traffic, ranks, 0, bytes);
    };
    constexpr double bytes = 1 << 30;
    const double within = us(one, 8, bytes), between = us(machine, 16, bytes);
    const double link = machine.topology.node.transfer_us(wire_factor(traffic, 2) * bytes);
    EXPECT_GE(between, std::max(within, link)) << name(traffic);
    EXPECT_LT(between, 0.9 * (within + link)) << name(traffic);
    EXPECT_GT(us(machine, 16, 0), us(one, 8, 0)) << "latencies add up";
    Machine emulated = machine;
    emulated.topology.serial = true;
    EXPECT_GT(us(emulated, 16, bytes), between) << "emulated links take their turns";
    // Larger chunks fill the pipeline later.
    const auto chunked = [&](std::int64_t chunk) {
      return collective_us(machine, traffic, 16, CollectiveConfig{.channels = 8, .chunk_bytes = chunk},
                           1 << 26);
    };
    EXPECT_GT(chunked(4 << 20), chunked(1 << 20)) << name(traffic);
  }
}

}  // namespace
}  // namespace shingle::nodes_test
