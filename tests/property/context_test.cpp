// Calls of a context: any operators, mechanisms, m and matrices, one behind the other with no barrier, while
// ranks are delayed at random. Every result is checked.
#include "shingle/api/context.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <list>
#include <thread>

#include "api/workspace.hpp"
#include "shingle/host/host.hpp"
#include "shingle/plan/print.hpp"
#include "support/random_problem.hpp"

namespace shingle::context_test {
namespace {

/// Delays each lane before some of its steps, by a hash of where it is.
void delay(const StepEvent& at) {
  const std::uint32_t where =
      static_cast<std::uint32_t>(at.rank * 7919 + at.lane * 104729 + at.step * 1299709 + at.epoch * 15485863);
  const std::uint32_t drawn = (where * 2654435761u) >> 20;
  if (drawn % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn % 512));
}

/// Matrices of a call, which stay until it is done.
struct Call {
  std::unique_ptr<Inputs> inputs;
  std::unique_ptr<Workspace> memory;
  std::string plan;  ///< as text, for failures
};

/// The operator at another m, with another routing, or an attention to some sequences.
Problem call_of(test::Dice& draw, Problem largest) {
  if (largest.has_slots()) return with_m(largest, draw.size(1, largest.m));
  if (largest.routing) {
    test::reroute(draw, largest, largest.m * largest.choices());
    return largest;
  }
  largest.m = draw.size(1, largest.m);
  if (largest.traits().attends && test::chance(draw, 60))
    largest.attention.lengths = test::random_partition(draw, largest.m, largest.m);
  if (largest.attention.lengths.size() == 1) largest.attention.lengths.clear();
  return largest;
}

void enqueue(Context& context, int op, const Problem& problem, std::span<const Argument> arguments) {
  if (problem.routing && !problem.has_slots()) return context.call(op, problem.routing, arguments);
  if (!problem.attention.lengths.empty()) return context.call(op, problem.attention.lengths, arguments);
  context.call(op, problem.m, arguments);
}

void expect_right(Call& call) {
  const Check result = check(*call.inputs, call.memory->outputs());
  EXPECT_TRUE(result.passed) << describe(call.inputs->problem()) << ": error " << result.max_error
                             << " above " << result.tolerance << " at " << result.worst << "\n"
                             << call.plan;
}

/// Calls of some operators in random order. Mechanism and params of each problem are drawn, once.
void try_one(std::uint64_t seed) {
  test::Dice draw(seed);
  const int ranks = static_cast<int>(draw.size(1, 4));
  HostOptions host{.workers_per_rank = static_cast<int>(draw.size(1, 2))};
  host.on_step = delay;
  // Counts wrap at 2^32, and comparisons of them at 2^31.
  host.first_epoch = test::one_of(draw, {0u, (1u << 31) - 3, 0u - 3});
  const auto world = make_thread_world(ranks, host);
  const Machine machine = world->machine();
  std::map<std::string, Params> chosen;
  ContextOptions options;
  options.most_plans = static_cast<std::size_t>(draw.size(1, 6));
  options.verify = true;
  options.registered_bytes = draw.size(0, 1);  // host ranks access any memory
  options.choose = [&](const Problem& problem) {
    const std::string key = describe(problem);
    if (const auto found = chosen.find(key); found != chosen.end()) return found->second;
    const auto entry = planners()[static_cast<std::size_t>(draw.size(0, planners().size() - 1))];
    return chosen.emplace(key, test::random_params(draw, problem, entry.mechanism)).first->second;
  };
  std::list<Call> calls;  // outlives the context, whose end waits for calls
  Context context(*world, options);
  std::vector<Problem> operators;
  for (std::int64_t i = draw.size(1, 3); i > 0; --i) {
    Problem problem = test::random_problem(draw, {.world = ranks, .m = 90, .n = 70, .k = 50});
    problem.world = ranks;
    if (test::chance(draw, 30)) problem = test::random_attention(draw, ranks, 90);
    if (problem.traits().routes()) test::route(draw, problem, 40);
    if (problem.traits().grouped && test::chance(draw, 50)) test::give_capacity(draw, problem, 40);
    if (problem.transpose_a) problem.transpose_a = false;
    if (problem.norm.enabled) problem.n += 32;
    problem.validate();
    context.declare(problem);
    operators.push_back(problem);
  }
  if (operators.empty()) return;
  for (std::int64_t i = draw.size(2, 10); i > 0; --i) {
    const int op = static_cast<int>(draw.size(0, static_cast<std::int64_t>(operators.size()) - 1));
    const Problem problem = call_of(draw, operators[static_cast<std::size_t>(op)]);
    Call& call = calls.emplace_back();
    call.inputs = random_inputs(problem, static_cast<std::uint64_t>(draw.size(0, 1 << 20)), Values::integers);
    call.memory = std::make_unique<Workspace>(*world, *call.inputs);
    call.memory->poison_outputs();
    if (auto plan = make_plan(problem, machine, options.choose(problem))) call.plan = to_text(*plan);
    enqueue(context, op, problem, call.memory->arguments(problem));
  }
  context.synchronize();
  for (Call& call : calls) expect_right(call);
}

TEST(Context, AnyCallsMayFollowOneAnother) {
  constexpr auto budget = std::chrono::seconds(30);
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t seed = 0;
  for (; seed < 400 && std::chrono::steady_clock::now() - start < budget; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    try_one(seed);
    if (HasFailure()) break;
  }
  RecordProperty("sequences", static_cast<int>(seed));
  EXPECT_GT(seed, 5u);
}

}  // namespace
}  // namespace shingle::context_test
