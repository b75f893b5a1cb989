// Attention that is stored on other ranks: verifier and host go by replicas(out), not by the slice alone.
#include "api/workspace.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/planner/planner.hpp"
#include "support/expect_proof.hpp"

namespace shingle::attend_ranks_test {
namespace {

using namespace test;

constexpr int world = 2;

Problem attention(Op op) {
  Problem p;
  p.op = op;
  p.world = world;
  p.m = 24;
  p.attention = {4, 2, 4, true, {}};
  p.k = op == Op::ulysses_attention ? 16 : 8;
  p.n = op == Op::ulysses_attention ? 16 : 12;
  return p;
}

Machine machine() {
  Machine machine;
  machine.ranks = world;
  machine.workers = 4;
  return machine;
}

/// Ulysses without the way back: each rank stores what it attends to where the tokens are at home.
Plan stored_at_home() {
  Plan plan = plan_sequential(attention(Op::ulysses_attention), machine(), {}).value();
  const auto out = find_buffer(plan, Role::out);
  const auto stored = static_cast<std::int32_t>(plan.counters.size());
  plan.counters.push_back({"stored", CounterKind::add, {{0}, {0}}});
  for (int r = 0; r < world; ++r) {
    RankPlan& rank = plan.ranks[static_cast<std::size_t>(r)];
    auto& steps = rank.lanes[0].steps;
    const auto at =
        std::ranges::find_if(steps, [](const Step& s) { return std::holds_alternative<Attend>(s); });
    const Attend whole_step = std::get<Attend>(*at);
    steps.erase(at, steps.end());
    rank.lanes[1].steps.resize(3);  // the exchange back
    rank.issue = {0, 0, 0, 0, 1, 1, 1, 0};
    for (int home = 0; home < world; ++home) {
      Attend part = whole_step;
      const std::int64_t rows = plan.problem().m / world, cols = part.grid.cols;
      part.grid = make_grid(rows, cols, 5, part.grid.tile_cols);
      part.first_token = home * rows;
      part.q.row += home * rows, part.q.rows = rows;
      part.out = Hand::in(whole(plan, out, r));
      part.out.slice.col = r * cols, part.out.slice.cols = cols;
      std::get<placement::Matrix>(part.out.form).ranks = {home};
      steps.push_back(std::move(part));
      steps.push_back(Notify{{stored, home, 0}, 1});
      rank.issue.insert(rank.issue.end(), 2, 0);
    }
    steps.push_back(Await{{stored, r, 0}, world});
    rank.issue.push_back(0);
  }
  count_growth(plan);
  return plan;
}

TEST(AttendRanks, WhatIsStoredAtHomeIsProvenAndRight) {
  const Plan plan = stored_at_home();
  const Proof proof = verify(plan);
  ASSERT_TRUE(proof.ok) << proof.rule << ": " << proof.failure << "\n" << to_text(plan);
  const auto threads = make_world(world, {.backend = "host", .workers_per_rank = 2});
  const auto inputs = random_inputs(plan.problem(), 7);
  Operator op(*threads, plan, 30e6);
  Workspace memory(*threads, *inputs);
  memory.bind(op);
  memory.poison_outputs();
  op.executable().poison();
  op.run(2);
  const Check result = check(*inputs, memory.outputs());
  EXPECT_TRUE(result.passed) << result.max_error << " above " << result.tolerance << " at " << result.worst;
}

TEST(AttendRanks, WhatOthersStoreIsAwaited) {
  Plan plan = stored_at_home();
  for (RankPlan& rank : plan.ranks) std::get<Await>(rank.lanes[0].steps.back()).target = 0;
  EXPECT_FALSE(verify(plan));
}

TEST(AttendRanks, ElsewhereIsNotHere) {
  for (const Op op : {Op::attention_reducescatter, Op::ulysses_attention}) {
    Plan plan = plan_sequential(attention(op), machine(), {}).value();
    ASSERT_TRUE(verify(plan)) << verify(plan).failure;
    for (int r = 0; r < world; ++r)
      for (Step& step : plan.ranks[static_cast<std::size_t>(r)].lanes[0].steps)
        if (auto* attend = std::get_if<Attend>(&step))
          std::get<placement::Matrix>(attend->out.form).ranks = {(r + 1) % world};
    EXPECT_FALSE(verify(plan)) << name(op);
  }
}

}  // namespace
}  // namespace shingle::attend_ranks_test
