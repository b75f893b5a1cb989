// Calls of a context in which a rank throws or stalls, at random moments: the error names the rank in time,
// and the process can make a new world and context.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "api/workspace.hpp"
#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"
#include "shingle/host/host.hpp"
#include "support/random_problem.hpp"

namespace shingle::context_fault_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int ranks = 3, calls = 12;

Problem layer() {
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.world = ranks;
  problem.m = 48, problem.n = 40, problem.k = 24;
  return problem;
}

/// The matrices of calls of any m, on a world.
struct Matrices {
  explicit Matrices(World& world)
      : inputs(random_inputs(layer(), 1, Values::integers)), memory(world, *inputs) {}

  std::unique_ptr<Inputs> inputs;
  Workspace memory;
};

/// Makes calls of random m with random mechanisms. Returns the error that ends them, and how long they took.
struct Outcome {
  std::string error;
  double seconds = 0;
};
Outcome make_calls(World& world, test::Dice& dice, double timeout_us) {
  static const std::vector<Params> ways{SequentialParams{}, ChunkedParams{}, SignalParams{}, RingParams{},
                                        FusedParams{}};
  const Matrices matrices(world);
  ContextOptions options;
  options.timeout_us = timeout_us;
  options.choose = [&](const Problem& problem) {
    return ways[static_cast<std::size_t>(problem.m) % ways.size()];
  };
  Context context(world, options);
  const int op = context.declare(layer());
  const auto begin = Clock::now();
  Outcome outcome;
  try {
    for (int i = 0; i < calls; ++i) {
      Problem problem = layer();
      problem.m = dice.size(1, problem.m);
      context.call(op, problem.m, matrices.memory.arguments(problem));
    }
    context.synchronize();
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  outcome.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return outcome;
}

/// Runs calls in which `fault` happens to one rank before a random step. `timeout_us` is the deadline of
/// waits.
template <class Fault>
void expect_named(std::uint64_t seed, double timeout_us, const Fault& fault,
                  const std::function<std::string(int rank)>& expression) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  test::Dice dice(seed);
  const int failing = static_cast<int>(dice.size(0, ranks - 1));
  std::atomic<std::int64_t> left = dice.size(0, 5 * calls);
  HostOptions options{.workers_per_rank = 1, .timeout_us = timeout_us};
  options.on_step = [&](const StepEvent& at) {
    if (at.rank == failing && left-- == 0) fault(at);
  };
  {
    const auto world = make_thread_world(ranks, options);
    const Outcome outcome = make_calls(*world, dice, timeout_us);
    if (left >= 0) return;  // the calls were done before
    EXPECT_THAT(outcome.error, testing::ContainsRegex(expression(failing)));
    EXPECT_LT(outcome.seconds, timeout_us * 1e-6 + 2);
  }
  const auto again = make_thread_world(ranks, {.workers_per_rank = 1});
  EXPECT_EQ(make_calls(*again, dice, 30e6).error, "");
}

/// SHINGLE_FAULTS changes the number of moments.
int moments() {
  const char* const set = std::getenv("SHINGLE_FAULTS");
  return set != nullptr ? std::atoi(set) : 10;
}

TEST(ContextFault, RankThatThrowsIsNamed) {
  for (int seed = 0; seed < moments() && !HasFailure(); ++seed)
    expect_named(
        static_cast<std::uint64_t>(seed), 20e6,
        [](const StepEvent& at) { throw Error("no memory on rank " + std::to_string(at.rank)); },
        [](int rank) { return "no memory on rank " + std::to_string(rank); });
}

TEST(ContextFault, RankThatStallsIsNamed) {
  const auto stall = [](const StepEvent& at) {
    while (!at.stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (int seed = 0; seed < moments() && !HasFailure(); ++seed)
    expect_named(static_cast<std::uint64_t>(seed), 1e6, stall, [](int rank) {
      return fmt::format("waited .*rank {0}|rank {0}, .*has not returned", rank);
    });
}

}  // namespace
}  // namespace shingle::context_fault_test
