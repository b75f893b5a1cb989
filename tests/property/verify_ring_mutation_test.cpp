// Rings whose engines copy slices into the next rank's memory, broken in one place each: every one has to be
// rejected. Beside verify_peer_mutation_test.cpp, which breaks plans whose GEMMs use that memory.
#include <gtest/gtest.h>

#include <optional>
#include <string_view>

#include "shingle/planner/planner.hpp"
#include "support/mutation.hpp"
#include "support/random_problem.hpp"

namespace shingle::verify_ring_mutation_test {
namespace {

using namespace test;

/// `anywhere`: also an await that is no engine's.
bool drop_await(Plan& plan, Dice& dice, std::string_view counter, bool anywhere = true) {
  const auto at = pick<Await>(plan, dice, [&](const At& where, const Await& await) {
    return counter_name(plan, await.counter) == counter &&
           (anywhere || lane_of(plan, where).kind == LaneKind::copy);
  });
  if (at) remove_step(plan, *at);
  return at.has_value();
}

/// Where sums alone go around, what a rank awaits is told it by nothing else. Shards that go around besides
/// may bring the same news.
bool only_sums(const Plan& plan) {
  return plan.problem().traits().reduces() && !plan.problem().traits().gathers() &&
         plan.problem().op != Op::gemm_allreduce;
}

/// A slice goes to a rank that may still be in the last epoch.
bool drop_begun(Plan& plan, Dice& dice) {
  return only_sums(plan) && drop_await(plan, dice, "begun");
}
/// A sum goes before it is there.
bool drop_summed(Plan& plan, Dice& dice) {
  return drop_await(plan, dice, "summed");
}
/// A sum is added before it has come.
bool drop_delivered(Plan& plan, Dice& dice) {
  return drop_await(plan, dice, "delivered");
}
/// The next sum takes the place of one that is being sent.
bool drop_sent(Plan& plan, Dice& dice) {
  return only_sums(plan) && drop_await(plan, dice, "sent");
}
/// The next sum takes the place of one that the next rank has not added yet.
bool drop_freed(Plan& plan, Dice& dice) {
  // A compute lane awaits the last ones only for calls of a context.
  return only_sums(plan) && drop_await(plan, dice, "freed", false);
}
/// A shard of A is multiplied, or passed on, before it has come.
bool drop_arrived(Plan& plan, Dice& dice) {
  return plan.problem().traits().gathers() && drop_await(plan, dice, "arrived");
}

bool forget_to_tell(Plan& plan, Dice& dice) {
  const auto at = pick<Notify>(plan, dice, [&](const At& where, const Notify& notify) {
    return lane_of(plan, where).kind == LaneKind::copy || counter_name(plan, notify.counter) == "begun";
  });
  if (!at) return false;
  const auto& count = std::get<Notify>(step_of(plan, *at)).counter;
  bool awaited = false;  // the last pass frees what nobody asks for
  for_each_step(plan, [&](const At&, const Step& step) {
    const auto* await = std::get_if<Await>(&step);
    awaited = awaited || (await != nullptr && await->counter == count);
  });
  if (awaited) remove_step(plan, *at);
  return awaited;
}

bool any_copy(const At&, const Copy&) {
  return true;
}

bool drop_copy(Plan& plan, Dice& dice) {
  const auto at = pick<Copy>(plan, dice, any_copy);
  if (at) remove_step(plan, *at);
  return at.has_value();
}

/// (What is gathered after sums is awaited at the end, and whoever knows of a copy knows of those before.)
bool tell_before_copying(Plan& plan, Dice& dice) {
  if (plan.problem().op == Op::gemm_allreduce) return false;
  const auto behind = [&](const At& at) -> Step& {
    return lane_of(plan, at).steps[static_cast<std::size_t>(at.step) + 1];
  };
  const auto at = pick<Copy>(plan, dice, [&](const At& where, const Copy&) {
    return std::holds_alternative<Notify>(behind(where));
  });
  if (at) std::swap(step_of(plan, *at), behind(*at));
  return at.has_value();
}

bool copy_one_row_up(Plan& plan, Dice& dice) {
  return change<Copy>(
      plan, dice, [](const At&, const Copy& copy) { return copy.to.row > 0; },
      [](Copy& copy) { --copy.to.row; });
}

bool copy_to_the_rank_after(Plan& plan, Dice& dice) {
  const int world = plan.world();
  return change<Copy>(plan, dice, any_copy, [&](Copy& copy) { copy.to.rank = (copy.to.rank + 1) % world; });
}

const Mutation mutations[] = {{"drop an await of the next rank's begin", drop_begun},
                              {"send a sum too soon", drop_summed},
                              {"add a sum too soon", drop_delivered},
                              {"overwrite what is being sent", drop_sent},
                              {"overwrite what is not added yet", drop_freed},
                              {"use a shard too soon", drop_arrived},
                              {"forget to tell", forget_to_tell},
                              {"drop a copy", drop_copy},
                              {"tell before copying", tell_before_copying},
                              {"copy one row up", copy_one_row_up},
                              {"copy to the rank after", copy_to_the_rank_after}};

/// A correct plan in which every rank has rows of its own.
std::optional<Plan> random_plan(Dice& dice) {
  Problem p = random_problem(dice, {.world = 5, .m = 60, .n = 30, .k = 10, .experts = false});
  if (p.world == 1 || p.traits().shards_tokens() || p.m <= p.world * (p.world - 1)) return std::nullopt;
  auto params = std::get<RingParams>(random_params(dice, p, Mechanism::ring));
  params.engines = static_cast<std::int32_t>(dice.size(1, 3));
  auto plan = plan_ring(p, random_machine(dice), params);
  if (!plan) return std::nullopt;
  return *plan;
}

class RingMutations : public testing::TestWithParam<Mutation> {};

TEST_P(RingMutations, AreAllCaught) {
  expect_caught(GetParam(), random_plan);
}

INSTANTIATE_TEST_SUITE_P(Verify, RingMutations, testing::ValuesIn(mutations), mutation_name);

}  // namespace
}  // namespace shingle::verify_ring_mutation_test
