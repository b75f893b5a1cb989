// Which counts become events between the lanes of a rank.
#include "lower/event_edges.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "shingle/planner/planner.hpp"

namespace shingle::hand_overs_test::event_edges_test {
namespace {

Machine machine() {
  Machine machine;
  machine.ranks = 2;
  machine.workers = 2;
  return machine;
}

Problem problem(Op op, bool norm = false) {
  Problem p{.op = op, .world = 2, .m = 64, .n = 64, .k = 64};
  p.norm.enabled = norm;
  return p;
}

/// How many waits and counts of rank 0 are handed over, and how many are not.
std::pair<int, int> counted(const Plan& plan) {
  const EventEdges edges(plan);
  std::pair<int, int> found;
  for (const Lane& lane : plan.ranks[0].lanes)
    for (const Step& step : lane.steps)
      if (std::holds_alternative<Await>(step) || std::holds_alternative<Notify>(step))
        ++(edges.of(step) == EventEdges::none ? found.second : found.first);
  return found;
}

TEST(EventEdges, OrderAProductAndItsCollective) {
  EXPECT_EQ(counted(plan_sequential(problem(Op::gemm_allreduce), machine()).value()), std::pair(2, 0));
}

/// Of `signal` the collectives are handed over to the passes behind them; the groups that tiles count are
/// not.
TEST(EventEdges, OrderCollectivesAndThePassesOfTheirGroups) {
  const Plan plan = plan_signal(problem(Op::gemm_allreduce), machine(), {.tile = {16, 16}}).value();
  const EventEdges edges(plan);
  const auto of = [&](std::string_view name, std::int32_t entry) {
    const auto at = std::ranges::find(plan.counters, name, &Counter::name) - plan.counters.begin();
    return edges.of(CounterRef{static_cast<std::int32_t>(at), 0, entry});
  };
  const auto groups = static_cast<std::int32_t>(plan.counters[0].growth[0].size());
  ASSERT_GT(groups, 1);
  EXPECT_EQ(edges.size(0), groups);
  for (std::int32_t g = 0; g < groups; ++g) {
    EXPECT_EQ(of("received", g), g);
    EXPECT_EQ(of("computed", g), EventEdges::none);
  }
  // With a norm the lane awaits each group itself.
  const Plan norm = plan_signal(problem(Op::gemm_allreduce, true), machine(), {.tile = {16, 16}}).value();
  EXPECT_EQ(counted(norm), std::pair(2 * groups, groups));
}

TEST(EventEdges, AreNoneWhereOthersLookOrMoreThanOneCounts) {
  const Plan plan = plan_sequential(problem(Op::gemm_allreduce), machine()).value();
  const auto edited = [&](auto edit) {
    Plan other = plan;
    for (Lane& lane : other.ranks[0].lanes)
      for (Step& step : lane.steps) edit(step);
    return EventEdges(other).size(0);
  };
  EXPECT_EQ(edited([](Step&) {}), 1);
  EXPECT_EQ(edited([](Step& step) {
              if (auto* notify = std::get_if<Notify>(&step)) notify->counter.rank = 1;
            }),
            0)
      << "another rank's count";
  EXPECT_EQ(edited([](Step& step) {
              if (auto* await = std::get_if<Await>(&step)) await->target = 2;
            }),
            0)
      << "a target that one notify does not reach";
  Plan twice = plan;
  for (Lane& lane : twice.ranks[0].lanes)
    if (std::ranges::any_of(lane.steps, [](const Step& s) { return std::holds_alternative<Notify>(s); }))
      lane.steps.push_back(lane.steps.back()), twice.ranks[0].issue.push_back(0);
  EXPECT_EQ(EventEdges(twice).size(0), 0) << "two notifies";
  Plan early = plan;
  std::ranges::reverse(early.ranks[0].issue);
  EXPECT_EQ(EventEdges(early).size(0), 0) << "a stream is ordered behind what has been issued";
}

}  // namespace
}  // namespace shingle::hand_overs_test::event_edges_test
