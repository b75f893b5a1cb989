// Any problem, any mechanism, any partition: the plan is proven, integer inputs come out exact and random
// ones within tolerance.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <cstdlib>
#include <map>

#include "api/workspace.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "support/random_problem.hpp"

namespace shingle::end_to_end_test {
namespace {

World& world_of(int ranks) {
  static std::map<int, std::unique_ptr<World>> worlds;
  auto& world = worlds[ranks];
  if (!world) world = make_world(ranks, {.backend = "host", .workers_per_rank = 2});
  return *world;
}

void expect_right(World& world, const Problem& problem, const Options& options, Values values) {
  test::Drawn draw;
  const auto inputs = random_inputs(problem, static_cast<std::uint64_t>(draw.size(0, 1 << 20)), values);
  Workspace memory(world, *inputs);
  Operator op(world, problem, options);
  memory.bind(op);
  memory.poison_outputs();
  op.executable().poison();
  op.run(static_cast<int>(draw.size(1, 2)));
  const Check result = check(*inputs, memory.outputs());
  if (!result.passed)
    RC_FAIL(describe(problem) + ": error " + std::to_string(result.max_error) + " above " +
            std::to_string(result.tolerance) + " at " + result.worst + "\n" + to_text(op.plan()));
}

/// Every mechanism that has a plan for a random problem.
void try_one() {
  test::Drawn draw;
  Problem problem = test::random_problem(draw, {.world = 6, .m = 150, .n = 120, .k = 80});
  // The mean square of a few elements can be as small as one likes, and an error relative to it as large.
  if (problem.norm.enabled) problem.n += 32;
  World& world = world_of(problem.world);
  for (const PlannerEntry& entry : planners()) {
    Params params = test::random_params(draw, problem, entry.mechanism);
    Result<Plan> plan = make_plan(problem, world.machine(), params);
    if (auto* signal = std::get_if<SignalParams>(&params); plan && signal) {
      signal->group_waves = test::random_groups(draw, *plan);
      plan = make_plan(problem, world.machine(), params);
      RC_ASSERT(plan.has_value());
    }
    // A transposed A is not to be had row by row, which gathering and unequal ranks need.
    if (entry.mechanism == Mechanism::sequential && !plan && !problem.transpose_a)
      RC_FAIL("the baseline must serve all: " + plan.reason());
    if (!plan) continue;
    const Proof proof = verify(*plan);
    if (!proof) RC_FAIL(describe(problem) + ": " + proof.rule + ": " + proof.failure + "\n" + to_text(*plan));
    expect_right(world, problem, {.params = params},
                 test::chance(draw, 50) ? Values::integers : Values::normal);
  }
}

TEST(EndToEnd, EveryMechanismIsProvenAndRight) {
  // Many, but bounded in time, because machines (and sanitizers) differ; RC_PARAMS can ask for more.
  setenv("RC_PARAMS", "max_success=1500", 0);
  constexpr auto budget = std::chrono::seconds(40);
  const auto start = std::chrono::steady_clock::now();
  int tried = 0;
  const bool right = rc::check([&] {
    if (std::chrono::steady_clock::now() - start > budget) return;
    try_one();
    ++tried;
  });
  RecordProperty("problems", tried);
  EXPECT_TRUE(right);
  EXPECT_GT(tried, 10);
}

}  // namespace
}  // namespace shingle::end_to_end_test
