// One process for each GPU. Each test of `GpuProcesses` starts this program again, once for each rank. Those
// processes run a part of `GpuRank` together, which has no parts in the test itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include "api/workspace.hpp"
#include "backend/launch.hpp"
#include "backend/processes.hpp"
#include "context_calls.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/runtime/devices.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/base/error.hpp"
#include "shingle/cuda/cuda.hpp"
#include "support/free_port.hpp"
#include "support/stop_process.hpp"

namespace shingle::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr double deadline_us = 15e6;  ///< of waits for other processes, which must also start within it

// -------------------------------------------------------------------------- in the processes of a world

Problem problem_of(Op op, int world) {
  Problem problem;
  problem.op = op;
  problem.world = world;
  problem.m = 1000;
  problem.n = 512;
  problem.k = 192;
  if (problem.traits().chains()) problem.inner = 320;
  problem.dtype = DType::bf16;
  if (!problem.traits().routes()) return problem;
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank)
    for (int row = 0; row < problem.m - 300 * rank; ++row)
      dest[static_cast<std::size_t>(rank)].push_back((rank + row * row / 7) % world);
  problem.routing = std::make_shared<const Routing>(dest);
  return problem;
}

/// The device of a rank: processes share one if there are no others.
int device_of(int rank) {
  std::string why;
  return cuda::count_gpus(why) > 1 ? rank : 0;
}

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

/// Calls of contexts with a fault of the matrices: see context_calls.hpp.
void contexts_are_exact() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us, .first_epoch = 0u - 40});
  const int calls = random_calls(*world, {.seed = 1, .operators = 6, .calls = 300});
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

struct Part {
  std::string name;
  void (*act)();
};
void PrintTo(const Part& part, std::ostream* out) {
  *out << part.name;
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
          {"Contexts", contexts_are_exact},
          {"CallsDiffer", calls_differ},
          {"CallsKilled", [] { calls_with_a_fault([] { raise(SIGKILL); }); }},
          {"CallsThrow", [] { calls_with_a_fault([] { throw Error("rank 1 fell over"); }); }},
          {"Groups", groups_are_exact},
          {"ContextsLast", contexts_last},
          {"Alone", say_why_there_is_no_world}};
}

class GpuRank : public testing::TestWithParam<Part> {};
TEST_P(GpuRank, Does) {
  GetParam().act();
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuRank);
INSTANTIATE_TEST_SUITE_P(GpuRank, GpuRank, testing::ValuesIn(parts()),
                         [](const auto& test) { return test.param.name; });

// --------------------------------------------------------------------------------------- in the test itself

struct Outcome {
  int code = -1;  ///< exit code as in a shell: 128 + n after signal n
  std::string text;
  double seconds = 0;
};

Outcome run(const std::string& command) {
  Outcome outcome;
  const auto begin = Clock::now();
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> part{};
  while (const std::size_t n = fread(part.data(), 1, part.size(), pipe)) outcome.text.append(part.data(), n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return outcome;
}

/// Command that runs a part in this program, with a limit of two minutes.
/// SHINGLE_PART_SECONDS changes the limit.
std::string program(const std::string& part) {
  const char* const limit = std::getenv("SHINGLE_PART_SECONDS");
  return fmt::format("timeout -s KILL {} /proc/{}/exe --gtest_filter='*/{}'",
                     limit != nullptr ? limit : "120", getpid(), part);
}

/// Starts ranks of a world of `size` as plain processes, with torchrun's variables and `variables(rank)`.
std::vector<Outcome> launch(int size, const std::vector<int>& ranks, const std::string& part,
                            const std::function<std::string(int rank)>& variables) {
  const int port = free_port();
  std::vector<std::future<Outcome>> running;
  for (const int rank : ranks)
    running.push_back(
        std::async(std::launch::async, run,
                   fmt::format("env RANK={} WORLD_SIZE={} MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} {}", rank,
                               size, port, variables(rank), program(part))));
  std::vector<Outcome> outcomes;
  for (auto& one : running) outcomes.push_back(one.get());
  return outcomes;
}

/// Variables of ranks on one host. Where there is one GPU, the processes share it: NCCL refuses that unless
/// it takes them for processes of several hosts.
std::string on_one_host(int rank) {
  std::string why;
  if (cuda::count_gpus(why) > 1) return fmt::format("LOCAL_RANK={}", rank);
  return fmt::format(
      "LOCAL_RANK={} NCCL_HOSTID=host{} NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1", rank, rank);
}
/// Variables that make each rank a separate host for NCCL, with one GPU and the loopback interface.
std::string on_own_host(int rank) {
  return fmt::format(
      "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 CUDA_VISIBLE_DEVICES={} NCCL_HOSTID=host{} NCCL_NET=Socket "
      "NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT",
      rank, rank);
}

class GpuProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (find_launcher().several()) GTEST_SKIP() << "this is a process of a world";
    std::string why;
    gpus = cuda::count_gpus(why);
    if (gpus < 1) GTEST_SKIP() << why;
  }
  int gpus = 0;
};

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
  EXPECT_THAT(outcomes[0].text, testing::ContainsRegex(
                                    "\\[rank 0 timeout after .* s: rank 1 is gone: its connection ended\\]"));
  EXPECT_EQ(outcomes[1].code, 128 + SIGKILL) << outcomes[1].text;
}

TEST_F(GpuProcesses, FirstThatExitsIsNoticed) {
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "FirstExits", on_one_host);
  EXPECT_EQ(outcomes[1].code, 0) << outcomes[1].text;
  EXPECT_THAT(outcomes[1].text, testing::ContainsRegex(
                                    "\\[rank 1 timeout after .* s: rank 0 is gone: its connection ended\\]"));
  EXPECT_EQ(outcomes[0].code, 3) << outcomes[0].text;
}

TEST_F(GpuProcesses, StalledOneIsNamedToAll) {
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "Stalls", on_one_host);
  for (const int rank : {0, 1}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, testing::ContainsRegex(fmt::format(
                                  "\\[rank {} timeout after .* s: rank 1 did not come within 15", rank)));
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
  };
  for (const auto& [part, stopped] : {Case{"StopsInARun", 1}, Case{"StopsInARunByMemory", 1},
                                      Case{"StopsBetweenRuns", 1}, Case{"FirstStops", 0}}) {
    const std::vector<Outcome> outcomes = launch(2, {0, 1}, part, on_one_host);
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
