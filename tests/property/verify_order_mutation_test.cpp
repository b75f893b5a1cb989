// Plans that communicate through collectives, broken in what orders their steps: awaits, notifies, gates,
// groups and the order of issue. Every broken plan has to be rejected with a failure that says where.
#include <gtest/gtest.h>
#include <algorithm>
#include <functional>

#include "plan/steps.hpp"
#include "support/collective_plans.hpp"
#include "support/mutation.hpp"

namespace shingle::verify_order_mutation_test {
namespace {

using namespace test;

bool drop_await(Plan& plan, Dice& dice) {
  const auto at = pick_await(plan, dice);
  if (at) remove_step(plan, *at);
  return at.has_value();
}

bool lower_target(Plan& plan, Dice& dice) {
  const auto at = pick_await(plan, dice);
  if (at) --step_as<Await>(plan, *at).target;
  return at.has_value();
}

bool raise_target(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Await>(plan, dice);
  if (at) ++step_as<Await>(plan, *at).target;
  return at.has_value();
}

bool exceed_workers(Plan& plan, Dice& dice) {
  if (const auto at = pick_kind<Collective>(plan, dice); at && dice.size(0, 1)) {
    step_as<Collective>(plan, *at).resources = {plan.workers + 1, plan.workers + 1};
    return true;
  }
  const auto gate = pick_gate(plan, dice);
  if (gate) step_as<Elementwise>(plan, gate->first).resources = {plan.workers + 1, plan.workers + 1};
  return gate.has_value();
}

bool drop_notify(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Notify>(plan, dice);
  if (at) remove_step(plan, *at);
  return at.has_value();
}

bool notify_twice(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Notify>(plan, dice);
  if (at) insert_step(plan, *at, step_of(plan, *at));
  return at.has_value();
}

/// The communicator's steps are issued before the GEMM that they wait for.
bool issue_await_first(Plan& plan, Dice& dice) {
  const auto at = pick_step(plan, dice, [](const At& where, const Step& step) {
    const auto* await = std::get_if<Await>(&step);
    return await && await->target > 0 && where.lane == 1;
  });
  if (!at) return false;
  auto& issue = plan.ranks[at->rank].issue;
  std::stable_sort(issue.begin(), issue.end(), std::greater<>{});
  return true;
}

bool remove_gate(Plan& plan, Dice& dice) {
  const auto gate = pick_gate(plan, dice);
  if (gate) step_as<Elementwise>(plan, gate->first).gates.clear();
  return gate.has_value();
}

bool lower_gate(Plan& plan, Dice& dice) {
  const auto gate = pick_gate(plan, dice);
  if (gate) step_as<Elementwise>(plan, gate->first).gates[0].targets[gate->second] = 0;
  return gate.has_value();
}

/// The last tile of a group counts for the next one.
bool move_boundary(Plan& plan, Dice& dice) {
  const auto at = pick_gemm(plan, dice);
  if (!at || step_as<Gemm>(plan, *at).notify.empty()) return false;
  Gemm& gemm = step_as<Gemm>(plan, *at);
  auto& ends = gemm.notify[0].ends;
  for (std::size_t g = 0; g + 1 < ends.size(); ++g)
    if (ends[g] > (g == 0 ? 0 : ends[g - 1]) && !gemm.grid.phantom(gemm.grid.tile(ends[g] - 1))) {
      --ends[g];
      return true;
    }
  return false;
}

bool collective_before_await(Plan& plan, Dice& dice) {
  const auto at = pick_step(plan, dice, [&](const At& where, const Step& step) {
    const auto* c = std::get_if<Collective>(&step);
    if (!c || !moves(*c) || where.step == 0) return false;
    const auto* await = std::get_if<Await>(&lane_of(plan, where).steps[where.step - 1]);
    return await && await->target > 0;
  });
  if (at) std::swap(lane_of(plan, *at).steps[at->step - 1], step_of(plan, *at));
  return at.has_value();
}

bool drop_await_before_send(Plan& plan, Dice& dice) {
  const auto at = pick_step(plan, dice, [&](const At& where, const Step& step) {
    const auto& lane = lane_of(plan, where).steps;
    return std::holds_alternative<Await>(step) && where.step + 1 < std::ssize(lane) &&
           std::holds_alternative<Exchange>(lane[where.step + 1]);
  });
  if (at) remove_step(plan, *at);
  return at.has_value();
}

/// A pass that follows its groups is issued before the lane that opens them.
bool issue_gated_pass_first(Plan& plan, Dice& dice) {
  const auto at = pick_gate(plan, dice);
  if (!at || at->first.lane != 0) return false;
  const Elementwise& pass = step_as<Elementwise>(plan, at->first);
  if (!by_groups(pass) || pass.gates[0].targets[at->second] == 0) return false;
  auto& issue = plan.ranks[at->first.rank].issue;
  std::stable_sort(issue.begin(), issue.end());
  return true;
}

bool wrong_growth(Plan& plan, Dice& dice) {
  if (plan.counters.empty()) return false;
  auto& ranks = plan.counters[static_cast<std::size_t>(
                                  dice.size(0, static_cast<std::int64_t>(plan.counters.size()) - 1))]
                    .growth;
  auto& entries = ranks[static_cast<std::size_t>(dice.size(0, plan.world() - 1))];
  if (entries.empty()) return false;
  ++entries[0];
  return true;
}

const Mutation mutations[] = {{"drop an await", drop_await},
                              {"lower a target", lower_target},
                              {"raise a target", raise_target},
                              {"exceed the workers", exceed_workers},
                              {"drop a notify", drop_notify},
                              {"notify twice", notify_twice},
                              {"issue an await first", issue_await_first},
                              {"remove a gate", remove_gate},
                              {"lower a gate's target", lower_gate},
                              {"move a group's boundary", move_boundary},
                              {"collective before its await", collective_before_await},
                              {"drop the await before a send", drop_await_before_send},
                              {"issue a gated pass first", issue_gated_pass_first},
                              {"declare another growth", wrong_growth}};

class OrderMutations : public testing::TestWithParam<Mutation> {};

TEST_P(OrderMutations, AreAllCaught) {
  expect_caught(GetParam(), random_collective_plan, {.wanted = 200, .seed = 20});
}

INSTANTIATE_TEST_SUITE_P(Verify, OrderMutations, testing::ValuesIn(mutations), mutation_name);

}  // namespace
}  // namespace shingle::verify_order_mutation_test
