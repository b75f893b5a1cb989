// Ranks that stand for all: a symmetric plan has the steps of the full plan's first ranks, and takes its
// time.
#include <gtest/gtest.h>

#include "shingle/api/registry.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/sim/simulate.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/random_problem.hpp"
#include "support/whole_machine.hpp"

namespace shingle::symmetry_test {
namespace {

using namespace test;

/// Nodes and groups of links of any size, full ones or not.
Machine connected_machine(Dice& dice) {
  Machine machine = whole_machine(dice);
  machine.workers += machine.collective_workers;  // some are left for computation
  machine.topology.pair_ranks = static_cast<std::int32_t>(dice.size(2, 4));
  if (chance(dice, 60)) {
    machine.topology.ranks_per_node = one_of(dice, {1, 2, 3, 4, 8});
    machine.topology.node = {static_cast<double>(dice.size(1, 50)), 3};
  }
  // No two of a rank's lanes go on in the same instant: who comes first then depends on all ranks' order.
  machine.launch_us += 0.137, machine.signal_us += 0.291;
  return machine;
}

/// A problem with equal shards, in a world that often fills the machine's nodes.
Problem even_problem(Dice& dice, const Machine& machine) {
  Problem problem = random_problem(dice, {.world = 12, .m = 120, .n = 64, .k = 48});
  while (problem.traits().routes()) problem = random_problem(dice, {.world = 12, .m = 120, .n = 64, .k = 48});
  const int node = larger(machine.topology.ranks_per_node, 1);
  if (chance(dice, 70)) problem.world = static_cast<int>(ceil_div(problem.world, node) * node);
  problem.m = problem.world * dice.size(1, 12);
  return problem;
}

void expect_stands_for(const Plan& some, const Plan& all, const Machine& machine, const SimOptions& options) {
  const std::string what = to_text(all);
  ASSERT_EQ(malformed(some), std::nullopt) << what;
  EXPECT_EQ(plan_from_json(to_json(some)), some);
  for (std::size_t r = 0; r < some.ranks.size(); ++r) ASSERT_EQ(some.ranks[r], all.ranks[r]) << what;
  const Simulated few = simulate(some, machine, options), full = simulate(all, machine, options);
  ASSERT_NEAR(few.makespan_us, full.makespan_us, 1e-9 * full.makespan_us) << what;
  for (std::size_t r = 0; r < some.ranks.size(); ++r)
    EXPECT_NEAR(few.computing_us[r], full.computing_us[r], 1e-9 * full.makespan_us) << what;
  if (few.events > 10 && 2 * some.ranks.size() <= all.ranks.size()) {
    EXPECT_LT(few.events, full.events);
  }
}

TEST(Symmetry, SomeRanksTakeTheTimeOfAll) {
  Dice dice(21);
  int fewer = 0;
  for (int i = 0; i < 250; ++i) {
    const Machine machine = connected_machine(dice);
    const Problem problem = even_problem(dice, machine);
    for (const PlannerEntry& entry : planners()) {
      Params params = random_params(dice, problem, entry.mechanism);
      const auto all = make_plan(problem, machine, params);
      std::visit([](auto& at) { at.symmetric = true; }, params);
      const auto some = make_plan(problem, machine, params);
      if (!all || !some) continue;
      EXPECT_EQ(is_symmetric(params_of(*some)), is_symmetric(*some));
      EXPECT_EQ(some->ranks.size(), static_cast<std::size_t>(machine.topology.period(problem.world)));
      expect_stands_for(*some, *all, machine, {.epochs = static_cast<int>(dice.size(1, 3))});
      fewer += is_symmetric(*some) ? 1 : 0;
    }
  }
  EXPECT_GT(fewer, 250);
}

/// The largest ring that can be planned in full, over eight nodes.
TEST(Symmetry, OfSixtyFourRanksInNodes) {
  Machine machine = machine_of_nodes(
      [] {
        Machine node;
        node.name = "node", node.ranks = 8, node.workers = 10, node.collective_workers = 2;
        node.tiles = {{64, 64, 1, 0.01}};
        node.memory_gbps = 100, node.link = {10, 1}, node.signal_us = 1;
        return node;
      }(),
      8, {15, 4});
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce, Op::allgather_gemm, Op::mlp}) {
    Problem problem{.op = op, .world = max_world, .m = 512, .n = 64, .k = 32};
    if (op == Op::mlp) problem.inner = 48;
    const Plan all = plan_ring(problem, machine).value();
    const Plan some = plan_ring(problem, machine, {.symmetric = true}).value();
    EXPECT_EQ(some.ranks.size(), 8u);
    expect_stands_for(some, all, machine, {});
  }
}

}  // namespace
}  // namespace shingle::symmetry_test
