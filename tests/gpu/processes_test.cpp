// Operators of several processes: results, and what happens if one ends, stops or comes late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cuda_runtime_api.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "api/workspace.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "processes.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/base/error.hpp"
#include "shingle/cuda/cuda.hpp"
#include "support/stop_process.hpp"

namespace shingle::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// An operator with its own matrices.
struct Job {
  Job(World& world, const Problem& problem, const Params& params, double timeout_us = deadline_us)
      : inputs(random_inputs(problem, 5, Values::integers)),
        workspace(world, *inputs),
        op(world, problem, {.params = params, .verify = true, .timeout_us = timeout_us}) {
    workspace.bind(op);
  }
  std::unique_ptr<Inputs> inputs;
  Workspace workspace;
  Operator op;
};

void operators_are_exact() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us});
  std::vector<Params> ways{SequentialParams{}, ChunkedParams{}, SignalParams{}, RingParams{}};
  // If processes can access each other's memory: through it.
  const bool engines = world->capabilities().remote_memory;
  if (engines) ways.push_back(RingParams{.engines = 1});
  int ran = 0;
  for (const Op op :
       {Op::gemm_allreduce, Op::gemm_reducescatter, Op::gemm_alltoall, Op::allgather_gemm, Op::mlp})
    for (const Params& params : ways) {
      const Problem problem = problem_of(op, world->size());
      if (!make_plan(problem, world->machine(), params)) continue;
      Job job(*world, problem, params);
      ASSERT_TRUE(job.inputs->exact());
      for (const int epochs : {1, 1, 1, 4}) {  // step by step, captured, replayed, back to back
        job.workspace.poison_outputs();
        job.op.executable().poison();
        job.op.run(epochs);
        const Check checked = check(*job.inputs, job.workspace.outputs());
        ASSERT_TRUE(checked.passed) << describe(problem) << ' ' << name(mechanism_of(params)) << ": error "
                                    << checked.max_error << " in " << checked.worst;
      }
      ++ran;
    }
  // `signal` does not serve an all-gather before a GEMM, and `ring` does not serve an all-to-all.
  EXPECT_EQ(ran, engines ? 21 : 17);
  std::printf("[rank %d: %d operators are exact]\n", world->local_ranks()[0], ran);
}

/// How an operator communicates: through NCCL, or through peer memory if processes have access.
enum class By { messages, memory };

/// Runs an operator repeatedly, and calls `fault(rank, run)` before each run. Prints the error that ends the
/// loop. Expects the error within its deadline, and a broken world afterwards.
void run_with_fault(const std::function<void(int rank, int run)>& fault, By by = By::messages,
                    double timeout_us = deadline_us) {
  const auto world = make_cuda_world(0, {.timeout_us = deadline_us});
  const int rank = world->local_ranks()[0];
  const bool memory = by == By::memory && world->capabilities().remote_memory;
  const Params params = memory ? Params{RingParams{.engines = 1}} : Params{SignalParams{}};
  Job job(*world, problem_of(Op::gemm_allreduce, world->size()), params, timeout_us);
  const auto failing_run = [&] {
    for (int run = 0;; ++run) {
      fault(rank, run);
      const auto begin = Clock::now();
      try {
        job.op.run(run < 3 ? 1 : 50);
      } catch (const Timeout& error) {
        const std::chrono::duration<double> time = Clock::now() - begin;
        return std::pair(std::string(error.what()), time.count());
      }
    }
  };
  const auto [reason, seconds] = failing_run();
  EXPECT_LT(seconds, timeout_us * 1e-6 + 15);  // the deadline, and the time to abort communicators
  std::printf("[rank %d timeout after %.1f s: %s]\n", rank, seconds, reason.c_str());
  EXPECT_THAT([&] { job.op.run(); }, testing::ThrowsMessage<Timeout>(AllOf(
                                         HasSubstr("broken by an earlier failure"), HasSubstr(reason))));
}

/// Calls `end` from another thread, in the middle of the process's other work.
void soon(void (*end)()) {
  std::thread([end] {
    std::this_thread::sleep_for(200ms);
    end();
  }).detach();
}

/// Rank `which` is stopped (SIGSTOP, not dead) during a run or between two runs.
template <int which, bool in_a_run, By by>
void run_with_a_stop() {
  constexpr double timeout_us = 5e6;
  run_with_fault(
      [](int rank, int run) {
        constexpr int longest_s = 40;
        const auto stop = [] { stop_this_process(longest_s); };
        if (rank != which || run != 3) return;
        in_a_run ? soon(stop) : stop();
      },
      by, timeout_us);
}

/// Binds new matrices repeatedly, as a framework's allocator does. Peers must close their former mappings.
void bind_anew() {
  constexpr std::size_t bytes = 64 << 20;
  constexpr int rounds = 16;
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us});
  const int rank = world->local_ranks()[0];
  if (!world->capabilities().remote_memory) return void(std::printf("[rank %d: no peer memory]\n", rank));
  Job job(*world, problem_of(Op::allgather_gemm, world->size()), FusedParams{.pull = true});
  const cuda::DeviceGuard guard(device_of(rank));
  std::size_t before = 0, after = 0, total = 0;
  DeviceBuffer bound;
  for (int round = 0; round < rounds; ++round) {
    DeviceBuffer next = world->allocate(rank, bytes);
    write_input(*world, *job.inputs, rank, Role::a, next.data());
    job.op.bind(rank, Role::a, next.data());
    job.workspace.poison_outputs();
    job.op.run();
    ASSERT_TRUE(check(*job.inputs, job.workspace.outputs()).passed) << "round " << round;
    bound = std::move(next);  // frees the former matrix, which no process has mapped any more
    if (round == 1) cuda::check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  }
  cuda::check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  EXPECT_LT(static_cast<double>(before) - static_cast<double>(after), 4.0 * bytes);
  std::printf("[rank %d: bound %d times]\n", rank, rounds);
}

void say_why_there_is_no_world() {
  try {
    make_cuda_world(0, {.timeout_us = 2e6});
    FAIL() << "there is a world";
  } catch (const Timeout& error) {
    std::printf("[timeout: %s]\n", error.what());
  }
}

std::vector<Part> parts() {
  if (!find_launcher().several()) return {};
  return {{"Operators", operators_are_exact},
          {"Killed",
           [] {
             run_with_fault([](int rank, int run) {
               if (rank == 1 && run == 3) soon([] { raise(SIGKILL); });
             });
           }},
          {"FirstExits",
           [] {
             run_with_fault([](int rank, int run) {
               if (rank == 0 && run == 3) soon([] { std::_Exit(3); });
             });
           }},
          {"Stalls",
           [] {
             run_with_fault([](int rank, int run) {
               if (rank == 1 && run == 3) std::this_thread::sleep_for(20s);
             });
           }},
          {"StopsInARun", run_with_a_stop<1, true, By::messages>},
          {"StopsInARunByMemory", run_with_a_stop<1, true, By::memory>},
          {"StopsBetweenRuns", run_with_a_stop<1, false, By::messages>},
          {"FirstStops", run_with_a_stop<0, true, By::messages>},
          {"BindsAnew", bind_anew},
          {"Alone", say_why_there_is_no_world}};
}

TEST_P(GpuRank, Does) {
  GetParam().act();
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuRank);
INSTANTIATE_TEST_SUITE_P(GpuRank, GpuRank, testing::ValuesIn(parts()),
                         [](const auto& test) { return test.param.name; });

/// Variables that make each rank a separate host for NCCL, with one GPU and the loopback interface.
std::string on_own_host(int rank) {
  return fmt::format(
      "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 CUDA_VISIBLE_DEVICES={} NCCL_HOSTID=host{} NCCL_NET=Socket "
      "NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT",
      rank, rank);
}

TEST_F(GpuProcesses, OfTorchrunRunOperators) {
  for (const int size : {2, 4}) {
    if (size > std::max(gpus, 2)) continue;
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    const std::vector<Outcome> outcomes = launch(size, ranks, "Operators", on_one_host);
    for (const int rank : ranks) {
      const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      EXPECT_EQ(outcome.code, 0) << outcome.text;
      EXPECT_THAT(outcome.text,
                  testing::ContainsRegex(fmt::format("\\[rank {}: (17|21) operators are exact", rank)));
    }
  }
}

TEST_F(GpuProcesses, OfMpirunRunOperators) {
  if (gpus < 2) GTEST_SKIP() << "2 GPUs are needed: 1 is here";
  if (run("command -v mpirun").code != 0) GTEST_SKIP() << "no mpirun here";
  // mpirun must not load the libraries that were set for this program.
  const char* libraries = std::getenv("LD_LIBRARY_PATH");
  const Outcome outcome = run(
      fmt::format("env -u LD_LIBRARY_PATH MASTER_PORT={} mpirun -n 2 --oversubscribe --allow-run-as-root "
                  "--bind-to none {} {}",
                  free_port(), libraries != nullptr ? fmt::format("-x LD_LIBRARY_PATH='{}'", libraries) : "",
                  program("Operators")));
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  for (const int rank : {0, 1})
    EXPECT_THAT(outcome.text,
                testing::ContainsRegex(fmt::format("\\[rank {}: (17|21) operators are exact", rank)));
}

TEST_F(GpuProcesses, OnSeveralHostsRunOperators) {
  if (gpus < 2) GTEST_SKIP() << "2 GPUs are needed: 1 is here";
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "Operators", on_own_host);
  for (const int rank : {0, 1}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr(fmt::format("[rank {}: 17 operators are exact]", rank)),
                                    HasSubstr("nNodes 2")));
  }
}

TEST_F(GpuProcesses, KilledOneIsNoticed) {
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "Killed", on_one_host);
  EXPECT_EQ(outcomes[0].code, 0) << outcomes[0].text;
  EXPECT_THAT(outcomes[0].text,
              testing::ContainsRegex(
                  "\\[rank 0 timeout after .* s: (.* failure: )?rank 1 is gone: its connection ended\\]"));
  EXPECT_EQ(outcomes[1].code, 128 + SIGKILL) << outcomes[1].text;
}

TEST_F(GpuProcesses, FirstThatExitsIsNoticed) {
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "FirstExits", on_one_host);
  EXPECT_EQ(outcomes[1].code, 0) << outcomes[1].text;
  EXPECT_THAT(outcomes[1].text,
              testing::ContainsRegex(
                  "\\[rank 1 timeout after .* s: (.* failure: )?rank 0 is gone: its connection ended\\]"));
  EXPECT_EQ(outcomes[0].code, 3) << outcomes[0].text;
}

TEST_F(GpuProcesses, StalledOneIsNamedToAll) {
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "Stalls", on_one_host);
  for (const int rank : {0, 1}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text,
                testing::ContainsRegex(fmt::format(
                    "\\[rank {} timeout after .* s: (.* failure: )?rank 1 did not come within 15", rank)));
  }
}

/// A stopped process keeps its connection open, so only deadlines notice it.
TEST_F(GpuProcesses, StoppedOneIsNamedByTheDeadline) {
  constexpr double deadline_s = 5;
  // 2 s for the epoch, 2 s for the roll call. NCCL takes ten more to leave sockets of a stopped process.
  const double margin_s = gpus > 1 ? 5 : 15;
  struct Case {
    const char* part;
    int stopped;
    std::future<std::vector<Outcome>> outcomes;
  };
  std::vector<Case> cases;  // all at once, because the processes stay stopped for long
  for (const auto& [part, stopped] :
       {std::pair{"StopsInARun", 1}, {"StopsInARunByMemory", 1}, {"StopsBetweenRuns", 1}, {"FirstStops", 0}})
    cases.push_back(
        {part, stopped, std::async(std::launch::async, launch, 2, std::vector{0, 1}, part, on_one_host)});
  for (auto& [part, stopped, running] : cases) {
    const std::vector<Outcome> outcomes = running.get();
    const Outcome& other = outcomes[static_cast<std::size_t>(1 - stopped)];
    EXPECT_EQ(other.code, 0) << part << '\n' << other.text;
    EXPECT_THAT(other.text, testing::ContainsRegex(fmt::format(
                                "\\[rank {} timeout after .* s: .*rank {} (does not answer|did not come).*"
                                "rank {} is stopped \\(process",
                                1 - stopped, stopped, stopped)))
        << part;
    double seconds = 1e9;
    const auto at = other.text.find(" timeout after ");
    if (at != std::string::npos) std::sscanf(other.text.c_str() + at, " timeout after %lf s", &seconds);
    EXPECT_LT(seconds, deadline_s + margin_s) << part;
    EXPECT_LT(other.seconds, 90) << part << ": to exit took long";
    EXPECT_EQ(outcomes[static_cast<std::size_t>(stopped)].code, 128 + SIGKILL) << part;
  }
}

TEST_F(GpuProcesses, MatricesBoundAnewAreLetGo) {
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "BindsAnew", on_one_host);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, testing::ContainsRegex("bound 16 times|no peer memory"));
  }
}

TEST_F(GpuProcesses, LateOneIsNamed) {
  const Outcome first = launch(2, {0}, "Alone", on_one_host)[0];
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_THAT(first.text, HasSubstr("[timeout: rank 1 did not join within 2"));
  const Outcome second = launch(2, {1}, "Alone", on_one_host)[0];
  EXPECT_EQ(second.code, 0) << second.text;
  EXPECT_THAT(second.text, HasSubstr("[timeout: rank 0 cannot be reached"));
}

}  // namespace
}  // namespace shingle::test

#else
TEST(GpuProcesses, NeedCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
