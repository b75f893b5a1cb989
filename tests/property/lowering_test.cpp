// Lowering keeps every order that a plan has: in any interleaving of its streams no await is passed too
// early, no step is left out, and nothing stops.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "shingle/plan/print.hpp"
#include "shingle/planner/planner.hpp"
#include "support/hand_plan.hpp"
#include "support/launch_machine.hpp"

namespace shingle::lowering_test {
namespace {

using namespace test;

/// Each random plan of a mechanism in several interleavings of two epochs. Returns the number of plans.
int check_plans(int draws, int orders) {
  int plans = 0;
  for (int draw = 0; draw < draws; ++draw) {
    Dice dice(static_cast<std::uint64_t>(draw));
    Problem problem = random_problem(dice, {.world = 5, .m = 60, .n = 40, .k = 16});
    if (chance(dice, 15)) problem = random_attention(dice, problem.world, 60);
    const Machine machine = random_machine(dice);
    for (const Params& params : random_params(dice, problem)) {
      const Result<Plan> plan = plan_with(problem, machine, params);
      if (!plan) continue;
      ++plans;
      const LaunchProgram program = lower(*plan);
      for (int order = 0; order < orders; ++order) {
        const std::string wrong = LaunchMachine(*plan, program, static_cast<std::uint64_t>(order)).run(2);
        if (wrong.empty()) continue;
        ADD_FAILURE() << "draw " << draw << ", order " << order << ": " << wrong << "\n"
                      << to_text(*plan) << to_text(*plan, program);
        return plans;
      }
    }
  }
  return plans;
}

TEST(Lowering, KeepsEveryOrderOfAPlan) {
  EXPECT_GT(check_plans(400, 6), 800);
}

Plan signal_plan() {
  const Problem problem{.op = Op::gemm_allreduce, .world = 2, .m = 64, .n = 64, .k = 64};
  Machine machine;
  machine.ranks = machine.workers = 2;
  return plan_signal(problem, machine, {.tile = {16, 16}}).value();
}

/// In some order; whether the machine notices.
bool notices(const Plan& plan, const LaunchProgram& program) {
  for (std::uint64_t order = 0; order < 50; ++order)
    if (!LaunchMachine(plan, program, order).run(2).empty()) return true;
  return false;
}

TEST(Lowering, AProgramThatLosesAnOrderIsNoticed) {
  const Plan plan = signal_plan();
  const LaunchProgram good = lower(plan);
  ASSERT_FALSE(notices(plan, good));
  const auto edited = [&](auto edit) {
    LaunchProgram program = good;
    edit(program.ranks[0].launches);
    return notices(plan, program);
  };
  EXPECT_TRUE(edited([](std::vector<Launch>& all) {
    std::erase_if(all, [](const Launch& launch) { return launch.kind == LaunchKind::record; });
  })) << "no record";
  EXPECT_TRUE(edited([](std::vector<Launch>& all) {
    const auto waits = [](const Launch& launch) { return !launch.parts.empty(); };
    std::ranges::stable_partition(all, waits);
  })) << "waits are issued before their records";
  EXPECT_TRUE(edited([](std::vector<Launch>& all) {
    for (Launch& launch : all)
      for (LaunchPart& part : launch.parts) part.event = launch.parts.front().event;
  })) << "parts wait for the event of the first group";
  EXPECT_TRUE(edited([](std::vector<Launch>& all) {
    std::erase_if(all, [](const Launch& launch) { return launch.kind == LaunchKind::kernel; });
  })) << "no kernels";
}

TEST(Lowering, IssuesLaunchesInTheOrderOfThePlan) {
  const Plan plan = signal_plan();
  const LaunchProgram program = lower(plan);
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    std::vector<std::int32_t> next(plan.ranks[rank].lanes.size(), 0);
    std::size_t issued = 0;
    for (const Launch& launch : program.ranks[rank].launches) {
      auto& step = next[static_cast<std::size_t>(launch.stream)];
      EXPECT_EQ(launch.first, step);
      step = launch.last;
      while (plan.ranks[rank].issue[issued] != launch.stream) ++issued;
    }
  }
}

/// Lane and steps [first, last) of each launch of rank 0, in issue order.
std::vector<std::array<std::int32_t, 3>> launched(const Plan& plan) {
  const LaunchProgram program = lower(plan);
  std::vector<std::array<std::int32_t, 3>> found;
  for (const Launch& launch : program.ranks[0].launches)
    found.push_back({launch.stream, launch.first, launch.last});
  return found;
}

TEST(Lowering, OnlyConsecutivelyIssuedSyncsShareALaunch) {
  Hand hand({.op = Op::gemm_allreduce, .world = 2, .m = 8, .n = 8, .k = 8});
  const std::int32_t count = hand.counter("count", 4), other = hand.lane("other");
  const auto tell = [&](std::int32_t lane, std::int32_t entry) { hand.notify(0, lane, count, 1, entry); };
  tell(0, 0), tell(0, 1), tell(other, 2), tell(0, 3);
  hand.step(0, 0, Fill{hand.all(hand.out, 0)});
  tell(0, 0);
  hand.count();
  using Launches = std::vector<std::array<std::int32_t, 3>>;
  EXPECT_EQ(launched(hand.plan), (Launches{{0, 0, 2}, {other, 0, 1}, {0, 2, 3}, {0, 3, 4}, {0, 4, 5}}));
}

TEST(Lowering, OnlyConsecutivelyIssuedPassesFuse) {
  Hand hand({.op = Op::gemm_allreduce, .world = 2, .m = 8, .n = 8, .k = 8});
  const std::int32_t from = hand.buffer("from", 8, 8), count = hand.counter("count"),
                     other = hand.lane("other");
  const auto move = [&](std::int64_t row) {
    hand.step(0, 0, Hand::pass({hand.rows(from, 0, row, 2)}, hand.rows(hand.out, 0, row, 2)));
  };
  move(0), move(2);
  hand.notify(0, other, count, 1);
  move(4), move(6);
  hand.step(0, 0, Hand::pass({hand.rows(hand.out, 0, 0, 2)}, hand.rows(from, 0, 0, 2)));
  hand.count();
  using Launches = std::vector<std::array<std::int32_t, 3>>;
  EXPECT_EQ(launched(hand.plan), (Launches{{0, 0, 2}, {other, 0, 1}, {0, 2, 4}, {0, 4, 5}}));
}

}  // namespace
}  // namespace shingle::lowering_test
