// Ranks as MPI processes. Each test of `Mpi` starts this program again under mpirun, where all processes
// together go through the contract of backends or a part of `MpiRank`; both are empty elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>

#include "api/workspace.hpp"
#include "check/oracle.hpp"
#include "contract/backend_contract.hpp"
#include "shingle/api/context.hpp"
#include "shingle/host/host.hpp"
#include "shingle/plan/shapes.hpp"
#include "shingle/planner/planner.hpp"
#include "support/stop_process.hpp"
#include "support/under_mpirun.hpp"

namespace shingle {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// ------------------------------------------------------------------------------------------- in the
// processes of a world

std::vector<contract::Backend> worlds() {
  if (!launched_by_mpi()) return {};
  return {{"mpi", [] { return make_mpi_world({.workers_per_rank = 1}); }},
          {"mpi_paced", [] { return make_mpi_world({.link = {1, 20}, .workers_per_rank = 1}); }}};
}

}  // namespace

namespace contract {
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendContract);
INSTANTIATE_TEST_SUITE_P(MpiRank, BackendContract, testing::ValuesIn(worlds()),
                         [](const auto& test) { return test.param.name; });
}  // namespace contract

namespace {

/// What all processes of a world do together.
struct Part {
  std::string name;
  void (*act)();
};
void PrintTo(const Part& part, std::ostream* out) {
  *out << part.name;
}

Problem problem_of(int world) {
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.world = world;
  problem.m = 70;
  problem.n = 50;
  problem.k = 20;
  return problem;
}

const SignalParams small_tiles{.tile = {16, 16}};

/// The planners' plans give the right result, and the same bits as on threads.
void plans_compute_what_the_oracle_says() {
  const auto world = make_mpi_world({.workers_per_rank = 1});
  const auto threads = make_thread_world(world->size(), {.workers_per_rank = 1});
  const auto run = [](World& on, const Plan& plan, const Inputs& inputs,
                      std::map<std::pair<int, Role>, DeviceBuffer>& memory) {
    const auto executable = on.compile(plan);
    executable->poison();
    for (const int rank : on.local_ranks())
      for (const Role role : roles_of(plan.work)) {
        auto& buffer = memory[{rank, role}] =
            on.allocate(rank, static_cast<std::size_t>(bytes_of(plan.work, role, rank)));
        if (is_input(role))
          inputs.write(rank, role, buffer.data());
        else
          std::memset(buffer.data(), 0xff, buffer.bytes());
        executable->bind(rank, role, buffer.data());
      }
    executable->run({.epochs = 3, .timeout_us = 20e6});
  };
  const Params all[] = {SequentialParams{}, ChunkedParams{}, small_tiles, RingParams{}};
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::gemm_alltoall})
    for (const Params& params : all) {
      Problem problem = problem_of(world->size());
      problem.op = op;
      problem.dtype = DType::bf16;
      problem.norm.enabled = true;
      if (op == Op::gemm_alltoall) {
        std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(problem.world));
        for (int r = 0; r < problem.world; ++r)
          for (int i = 0; i < 70 - 30 * r; ++i)
            dest[static_cast<std::size_t>(r)].push_back((r + i * i) % problem.world);
        problem.routing = std::make_shared<Routing>(dest);
      }
      const auto plan = plan_with(problem, world->machine(), params);
      if (!plan) continue;
      const auto inputs = random_inputs(problem, 7);
      std::map<std::pair<int, Role>, DeviceBuffer> memory, reference;
      run(*world, *plan, *inputs, memory);
      run(*threads, *plan, *inputs, reference);
      const int rank = world->local_ranks()[0];
      const Output out{rank, Role::out, memory.at({rank, Role::out}).data()};
      const Check checked = check(*inputs, {&out, 1});
      EXPECT_TRUE(checked.passed) << describe(problem) << ", " << name(plan->mechanism) << ": "
                                  << checked.max_error << " in " << checked.worst;
      EXPECT_EQ(std::memcmp(out.memory, reference.at({rank, Role::out}).data(),
                            static_cast<std::size_t>(bytes_of(problem, Role::out, rank))),
                0)
          << describe(problem) << ", " << name(plan->mechanism);
    }
}

void remote_memory_is_refused() {
  const auto world = make_mpi_world({.workers_per_rank = 1});
  contract::Maker make(world->size());
  const std::int32_t a = make.buffer(Role::a, 2, 2);
  make.step(0, 0, Copy{make.all(a, 0), make.all(a, 1)});
  try {
    (void)world->compile(make.plan);
    FAIL() << "no exception";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0, lane lane0, step 0 (copy) uses memory of rank 1"),
                                    HasSubstr("MPI")));
  }
}

void different_plans_are_refused() {
  const auto world = make_mpi_world({.workers_per_rank = 1});
  contract::Maker make(world->size());
  make.buffer(Role::a, 2 + world->local_ranks()[0], 2);
  EXPECT_THROW((void)world->compile(make.plan), InvalidArgument);
}

/// Calls of a context with several m. Then rank 1 makes another call than the others, and every process says
/// what it threw.
void calls_of_a_context() {
  const auto world = make_mpi_world({.workers_per_rank = 1});
  const int rank = world->local_ranks()[0];
  Context context(*world, {.timeout_us = 20e6});
  const int op = context.declare(problem_of(world->size()));
  std::deque<std::pair<std::unique_ptr<Inputs>, Workspace>> calls;
  const auto call = [&](std::int64_t m) {
    auto inputs = random_inputs(context.problem(op, m), static_cast<std::uint64_t>(m));
    Workspace memory(*world, *inputs);
    auto& [made, matrices] = calls.emplace_back(std::move(inputs), std::move(memory));
    matrices.poison_outputs();
    std::vector<Argument> arguments;
    for (const Role role : roles_of(made->problem()))
      arguments.push_back({rank,
                           role,
                           {const_cast<void*>(matrices.data(rank, role)),
                            shape_of(made->problem(), role, rank), made->problem().dtype}});
    context.call(op, m, arguments);
  };
  for (const std::int64_t m : {70, 1, 33, 70}) call(m);
  context.declare(problem_of(world->size()));  // while calls are under way
  context.synchronize();
  for (auto& [made, matrices] : calls) EXPECT_TRUE(check(*made, matrices.outputs()).passed);
  try {
    call(rank == 1 ? 5 : 6);
    context.synchronize();
    ADD_FAILURE() << "different calls pass for one";
  } catch (const Error& error) {
    std::fprintf(stderr, "[rank %d: %s]\n", rank, error.what());
  }
}

/// Runs with a fault at rank 1's third epoch; every process says what run() threw.
void run_with_fault(const std::function<void(const StepEvent&)>& fault) {
  const auto world = make_mpi_world({.workers_per_rank = 1, .on_step = [&](const StepEvent& at) {
                                       if (at.rank == 1 && at.lane == 1 && at.epoch == 2 && at.step == 1)
                                         fault(at);
                                     }});
  contract::Bench bench(*world,
                        plan_signal(problem_of(world->size()), world->machine(), small_tiles).value());
  std::string said = "succeeded";
  try {
    bench.executable->run({.epochs = 4, .timeout_us = 1.5e6});
  } catch (const Timeout& error) {
    said = std::string("timeout: ") + error.what();
  } catch (const std::exception& error) {
    said = std::string("error: ") + error.what();
  }
  std::fprintf(stderr, "[rank %d %s]\n", world->local_ranks()[0], said.c_str());
}

std::vector<Part> parts() {
  if (!launched_by_mpi()) return {};
  return {{"Plans", plans_compute_what_the_oracle_says},
          {"Remote", remote_memory_is_refused},
          {"Different", different_plans_are_refused},
          {"Calls", calls_of_a_context},
          {"Throws", [] { run_with_fault([](const StepEvent&) { throw Error("rank 1 fell over"); }); }},
          {"Stalls",
           [] {
             run_with_fault([](const StepEvent& at) {
               while (!at.stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
             });
           }},
          {"Stops", [] { run_with_fault([](const StepEvent&) { test::stop_this_process(); }); }},
          {"Dies", [] { run_with_fault([](const StepEvent&) { raise(SIGKILL); }); }},
          {"Late", [] {
             run_with_fault(
                 [](const StepEvent&) { std::this_thread::sleep_for(std::chrono::milliseconds(700)); });
           }}};
}

class MpiRank : public testing::TestWithParam<Part> {};
TEST_P(MpiRank, Does) {
  GetParam().act();
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MpiRank);
INSTANTIATE_TEST_SUITE_P(MpiRank, MpiRank, testing::ValuesIn(parts()),
                         [](const auto& test) { return test.param.name; });

// ------------------------------------------------------------------------------------------------- in the
// test itself

using Outcome = test::MpiOutcome;
using test::under_mpirun;

class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    if (launched_by_mpi()) GTEST_SKIP() << "this is a process of a world";
  }
};

TEST_F(Mpi, KeepsTheContract) {
  for (const int ranks : {1, 2, 3}) {
    const Outcome outcome = under_mpirun(ranks, "MpiRank/BackendContract.*");
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("[  PASSED  ]"), Not(HasSubstr("FAILED"))));
  }
}

TEST_F(Mpi, RunsPlans) {
  for (const int ranks : {2, 4}) {
    const Outcome outcome = under_mpirun(ranks, "*/Plans:*/Remote:*/Different");
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("[  PASSED  ]"), Not(HasSubstr("FAILED"))));
  }
}

TEST_F(Mpi, CallsOfAContextAgreeOrNameTheRank) {
  const Outcome outcome = under_mpirun(3, "*/Calls");
  EXPECT_NE(outcome.code, 0);  // the world is broken at the end
  EXPECT_THAT(
      outcome.text,
      AllOf(HasSubstr("call 4 of rank 0 is operator 0 with m = 6; rank 1 calls operator 0 with m = 5"),
            Not(HasSubstr("FAILED")), Not(HasSubstr("Failure"))));
  EXPECT_LT(outcome.time.count(), 60);
}

TEST_F(Mpi, RankThatThrowsStopsTheOthersAtOnce) {
  const Outcome outcome = under_mpirun(3, "*/Throws");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("[rank 1 error: rank 1 fell over]"),
                                  HasSubstr("[rank 0 timeout: rank 1 has failed: rank 1 fell over"),
                                  HasSubstr("[rank 2 timeout: rank 1 has failed: rank 1 fell over")));
  EXPECT_LT(outcome.time.count(), 60);  // the words above prove "at once"; this that nothing hangs
}

TEST_F(Mpi, RankThatStallsIsNamed) {
  for (const char* test : {"*/Stalls", "*/Stops"}) {
    const Outcome outcome = under_mpirun(3, test);
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.text, testing::ContainsRegex("\\[rank [02] timeout: .*waited 1.50 s for .*rank 1"))
        << test;
    EXPECT_LT(outcome.time.count(), 60);
  }
}

/// mpirun notices the death and ends the others, which say what they were waiting for before they go.
TEST_F(Mpi, RankThatDiesIsNamed) {
  const Outcome outcome = under_mpirun(3, "*/Dies");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.text,
              testing::ContainsRegex("\\[rank [02] timeout: .*rank 1 to come to communicator world"));
  EXPECT_LT(outcome.time.count(), 60);
}

TEST_F(Mpi, LateRankIsWaitedFor) {
  const Outcome outcome = under_mpirun(3, "*/Late");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("[rank 0 succeeded]"), HasSubstr("[rank 1 succeeded]"),
                                  HasSubstr("[rank 2 succeeded]")));
}

}  // namespace
}  // namespace shingle
