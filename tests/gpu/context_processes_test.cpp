// Contexts of several processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>

#include "backend/processes.hpp"
#include "context_calls.hpp"
#include "processes.hpp"
#include "shingle/base/error.hpp"
#include "shingle/cuda/cuda.hpp"

namespace shingle::test {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// Calls of contexts with a fault of the matrices: see context_calls.hpp.
void contexts_are_exact() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us, .first_epoch = 0u - 40});
  int calls = random_calls(*world, {.seed = 1, .operators = 6, .calls = 150});
  calls += random_calls(*world, {.seed = 2, .operators = 6, .calls = 150, .registered = true});
  std::printf("[rank %d: %d calls are exact]\n", world->local_ranks()[0], calls);
}

/// SHINGLE_SOAK_CALLS changes the number.
void contexts_last() {
  const char* const set = std::getenv("SHINGLE_SOAK_CALLS");
  const int calls = set != nullptr ? std::atoi(set) : 1000;
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us, .on_step = delay_some});
  const int made = soak(*world, {.seed = 5, .calls = calls});
  std::printf("[rank %d: %s calls were made]\n", world->local_ranks()[0], made >= calls ? "all" : "few");
}

/// Four processes, each in two groups of two: ranks of a row, and ranks of a column. Contexts of both groups
/// make calls at the same time.
void groups_are_exact() {
  const auto everyone = connect(find_launcher(), 2 * deadline_us);
  const int rank = find_launcher().rank;
  const auto group = [&](std::vector<int> members) {
    const int own = static_cast<int>(std::ranges::find(members, rank) - members.begin());
    return make_cuda_world(Bootstrap{own, 2, device_of(rank),
                                     [&everyone, members](std::string_view mine) {
                                       const auto all = everyone->all_gather(mine, deadline_us);
                                       std::string some;
                                       for (const int member : members)
                                         some += all[static_cast<std::size_t>(member)];
                                       return some;
                                     }},
                           {.timeout_us = 2 * deadline_us});
  };
  const int row = rank / 2, column = rank % 2;
  const auto tensor = group({2 * row, 2 * row + 1});
  const auto data = group({column, column + 2});
  // All memory is allocated before the calls: freeing some would wait for the device, on which a kernel of
  // the other group may be waiting.
  const auto soak_of = [](int seed) {
    return Soak{.seed = static_cast<std::uint64_t>(seed), .calls = 500, .workers = 48, .graphs = false};
  };
  Soaking of_tensor(*tensor, soak_of(7 + row)), of_data(*data, soak_of(9 + column));
  everyone->barrier(2 * deadline_us);
  auto other = std::async(std::launch::async, [&] { return of_tensor.run(); });
  const int calls = std::min(of_data.run(), other.get());
  std::printf("[rank %d: %s calls of two groups were made]\n", rank, calls >= 500 ? "all" : "few");
}

/// Calls of a context until rank 1 is killed, or throws, before the step that SHINGLE_MOMENT draws. Prints
/// the error of rank 0.
void calls_with_a_fault(const std::function<void()>& fault) {
  const char* const moment = std::getenv("SHINGLE_MOMENT");
  Dice dice(moment != nullptr ? static_cast<std::uint64_t>(std::atoi(moment)) : 0);
  std::int64_t left = dice.size(0, 1000);
  CudaOptions options{.timeout_us = deadline_us};
  options.on_step = [&](const CudaStepEvent& at) {
    if (at.rank == 1 && left-- == 0) fault();
  };
  const auto world = make_cuda_world(0, options);
  const int rank = world->local_ranks()[0];
  Soaking soaking(*world, {.seed = 11, .calls = 100000});
  const auto begin = Clock::now();
  try {
    soaking.run();
    FAIL() << "all calls were made";
  } catch (const Error& error) {
    const std::chrono::duration<double> time = Clock::now() - begin;
    std::printf("[rank %d error after %.1f s: %s]\n", rank, time.count(), error.what());
  }
}

/// Rank 1 calls with another m than rank 0.
void calls_differ() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us});
  const int rank = world->local_ranks()[0];
  try {
    call_with(*world, 64 + 32 * rank);
    FAIL() << "different calls were made";
  } catch (const Timeout& error) {
    std::printf("[rank %d: %s]\n", rank, error.what());
  }
}

/// Calls with registered matrices: of ordinary memory, then at another offset on rank 1.
void registered_matrices_are_compared() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us});
  const int rank = world->local_ranks()[0];
  if (!world->capabilities().remote_memory) return void(std::printf("[rank %d: no peer memory]\n", rank));
  const Problem problem = problem_of(Op::gemm_allreduce, world->size());
  Context context(*world, {.choose = [](const Problem&) { return RingParams{.engines = 1}; },
                           .registered_bytes = 64 << 20,
                           .timeout_us = deadline_us});
  context.declare(problem);
  ASSERT_EQ(context.plan(0, problem.m).mechanism, Mechanism::ring);
  Dice dice(3);
  const auto call_with_matrices_of = [&](Context* registered) {
    const CallMatrices matrices(*world, random_inputs(problem, 1, Values::integers), dice, registered);
    context.call(0, problem.m, matrices.arguments());
    context.synchronize();
  };
  EXPECT_THAT([&] { call_with_matrices_of(nullptr); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("must lie in registered memory")));
  call_with_matrices_of(&context);
  const DeviceBuffer other = rank == 1 ? context.allocate(rank, 4096) : DeviceBuffer();
  try {
    call_with_matrices_of(&context);
    FAIL() << "the offsets differ";
  } catch (const Timeout& error) {
    std::printf("[rank %d: %s]\n", rank, error.what());
  }
}

std::vector<Part> parts() {
  if (!find_launcher().several()) return {};
  return {{"Contexts", contexts_are_exact},
          {"CallsDiffer", calls_differ},
          {"Registered", registered_matrices_are_compared},
          {"CallsKilled", [] { calls_with_a_fault([] { raise(SIGKILL); }); }},
          {"CallsThrow", [] { calls_with_a_fault([] { throw Error("rank 1 fell over"); }); }},
          {"Groups", groups_are_exact},
          {"ContextsLast", contexts_last}};
}

TEST_P(GpuRank, Does) {
  GetParam().act();
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuRank);
INSTANTIATE_TEST_SUITE_P(GpuRank, GpuRank, testing::ValuesIn(parts()),
                         [](const auto& test) { return test.param.name; });

TEST_F(GpuProcesses, CallsOfContextsAreExact) {
  for (const Outcome& outcome : launch(2, {0, 1}, "Contexts", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(": 300 calls are exact]"));
  }
}

TEST_F(GpuProcesses, ContextsLastForManyCalls) {
  for (const Outcome& outcome : launch(2, {0, 1}, "ContextsLast", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(": all calls were made]"));
  }
}

TEST_F(GpuProcesses, GroupsMayOverlap) {
  if (gpus > 1 && gpus < 4)
    GTEST_SKIP() << "4 GPUs are needed, or one that all share: " << gpus << " are here";
  for (const Outcome& outcome : launch(4, {0, 1, 2, 3}, "Groups", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(": all calls of two groups were made]"));
  }
}

/// SHINGLE_FAULTS changes the number of moments.
TEST_F(GpuProcesses, FaultsInCallsAreNamed) {
  const char* const set = std::getenv("SHINGLE_FAULTS");
  const int moments = set != nullptr ? std::atoi(set) : 2;
  for (int moment = 0; moment < moments && !HasFailure(); ++moment) {
    const auto at = [&](int rank) { return fmt::format("{} SHINGLE_MOMENT={}", on_one_host(rank), moment); };
    const Outcome killed = launch(2, {0, 1}, "CallsKilled", at)[0];
    EXPECT_EQ(killed.code, 0) << killed.text;
    EXPECT_THAT(killed.text, testing::ContainsRegex("\\[rank 0 error after .* s: rank 1 is gone"));
    const Outcome thrown = launch(2, {0, 1}, "CallsThrow", at)[0];
    EXPECT_EQ(thrown.code, 0) << thrown.text;
    EXPECT_THAT(thrown.text,
                testing::ContainsRegex("\\[rank 0 error after .* s: rank 1 (has failed: )?.*fell over"));
  }
}

TEST_F(GpuProcesses, CallsThatDifferAreNamed) {
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "CallsDiffer", on_one_host);
  std::string all;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    all += outcome.text;
  }
  // Whichever rank begins the call last finds the difference, and tells the other.
  EXPECT_THAT(all, testing::ContainsRegex(
                       "rank 0 calls operator 0 with m = 64, where rank 1 calls operator 0 with m = 96|"
                       "rank 1 calls operator 0 with m = 96, where rank 0 calls operator 0 with m = 64"));
}

TEST_F(GpuProcesses, RegisteredMatricesAreCompared) {
  std::string all;
  for (const Outcome& outcome : launch(2, {0, 1}, "Registered", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    all += outcome.text;
  }
  EXPECT_THAT(all, testing::ContainsRegex("registered matrices at other offsets than rank|no peer memory"));
}

}  // namespace
}  // namespace shingle::test

#else
TEST(GpuProcesses, NeedCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
