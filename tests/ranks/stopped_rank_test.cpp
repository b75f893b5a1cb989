// A rank that is stopped (SIGSTOP), not dead: its connections stay open, and nobody tells the others.
// Wherever they wait for it, they end by their deadline and name it. Each test of `StoppedRank` starts this
// program again under mpirun, where rank 1 stops at a place of `MpiPlace`.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "contract/contract_support.hpp"
#include "shingle/host/host.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/run/together.hpp"
#include "support/stop_process.hpp"
#include "support/under_mpirun.hpp"

namespace shingle::stopped_rank_test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr double timeout_us = 4e6;
constexpr double margin_s = 5;  ///< beyond the deadline: a busy machine takes seconds away
constexpr int stopped_rank = 1;

// ------------------------------------------------------------------------ in the processes of a world

/// Says what ended `wait`, and when.
void expect_timeout(int rank, const std::function<void()>& wait) {
  const auto begin = Clock::now();
  std::string said = "succeeded";
  try {
    wait();
  } catch (const Timeout& error) {
    said = error.what();
  }
  const std::chrono::duration<double> time = Clock::now() - begin;
  EXPECT_LT(time.count(), timeout_us * 1e-6 + margin_s);
  std::fprintf(stderr, "[rank %d: %s]\n", rank, said.c_str());
}

std::unique_ptr<World> make_world(std::function<void(const StepEvent&)> on_step = {}) {
  return make_mpi_world({.workers_per_rank = 1, .timeout_us = timeout_us, .on_step = std::move(on_step)});
}

void meet_at(void (*wait)(World&)) {
  const auto world = make_world();
  const int rank = world->local_ranks()[0];
  if (rank == stopped_rank) test::stop_this_process();
  expect_timeout(rank, [&] { wait(*world); });
}

/// Every rank sends to the next.
Plan messages(const World& world) {
  contract::Maker make(world.size());
  const std::int32_t a = make.buffer(Role::a, 2, 2), out = make.buffer(Role::out, 2, 2);
  for (int rank = 0; rank < world.size(); ++rank) {
    Exchange ring;
    ring.sends = {{(rank + 1) % world.size(), make.all(a, rank)}};
    ring.receives = {{(rank + world.size() - 1) % world.size(), make.all(out, rank)}};
    make.step(rank, 0, ring);
  }
  return make.plan;
}

/// A product that counts its tiles, and collectives that await the counts.
Plan counted_collectives(const World& world) {
  Problem problem{.op = Op::gemm_allreduce, .world = world.size(), .m = 70, .n = 50, .k = 20};
  return plan_signal(problem, world.machine(), {.tile = {16, 16}}).value();
}

/// `lane`: at whose first step rank 1 stops, in the third epoch; −1: between two runs.
void run_plan(Plan (*plan)(const World&), int lane) {
  const auto world = make_world([lane](const StepEvent& at) {
    if (at.rank == stopped_rank && at.lane == lane && at.epoch == 2 && at.step == 0)
      test::stop_this_process();
  });
  const int rank = world->local_ranks()[0];
  contract::Bench bench(*world, plan(*world));
  bench.run(2);
  if (lane < 0 && rank == stopped_rank) test::stop_this_process();
  expect_timeout(rank, [&] { bench.executable->run({.epochs = 2, .timeout_us = timeout_us}); });
}

/// Work of the host that takes longer than any deadline, beside a rank that stops or one that is slow.
void work_together(bool stops) {
  const auto world = make_world();
  const int rank = world->local_ranks()[0];
  expect_timeout(rank, [&] {
    cli::together(*world, [&] {
      if (rank == stopped_rank && stops) test::stop_this_process();
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(stops ? 20e6 : 2 * timeout_us)));
    });
  });
}

struct Place {
  std::string name;
  void (*act)();
  std::string others_say{};  ///< a regular expression
};
void PrintTo(const Place& place, std::ostream* out) {
  *out << place.name;
}

const std::vector<Place>& places() {
  static const std::vector<Place> all{
      {"Start",
       [] {
         const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
         if (rank != nullptr && std::atoi(rank) == stopped_rank) test::stop_this_process();
         make_world();
       },
       "shingle: rank [02]: waited 12.00 s in MPI's start for the other processes; rank 1 is stopped"},
      {"Barrier", [] { meet_at([](World& world) { world.barrier(); }); },
       "\\[rank [02]: .*waited 4.00 s in a barrier for rank 1 to come; rank 1 is stopped"},
      {"Maximum", [] { meet_at([](World& world) { (void)world.all_max({1, 2}); }); },
       "\\[rank [02]: .*waited 4.00 s in a maximum over all for rank 1 to come; rank 1 is stopped"},
      {"Compile", [] { meet_at([](World& world) { (void)world.compile(messages(world)); }); },
       "\\[rank [02]: .*waited 4.00 s in a maximum over all for rank 1 to come; rank 1 is stopped"},
      {"BetweenRuns", [] { run_plan(messages, -1); },
       "\\[rank [02]: .*waited 4.00 s in a barrier for rank 1 to come; rank 1 is stopped"},
      // Rank 0 may be an epoch ahead, and its deadline pass first: then it waits for rank 2.
      {"Messages", [] { run_plan(messages, 0); },
       "\\[rank [02]: .*\\(exchange\\), epoch (2: waited 4.00 s for rank 1|3: waited 4.00 s for rank 2) to "
       "come to "
       "communicator world.*rank 1 is stopped"},
      {"Counters", [] { run_plan(counted_collectives, 0); },
       "\\[rank [02]: .*waited 4.00 s for .*rank 1 to come to communicator.*rank 1 is stopped"},
      {"Collectives", [] { run_plan(counted_collectives, 1); },
       "\\[rank [02]: .*waited 4.00 s for .*rank 1 to come to communicator.*rank 1 is stopped"},
      {"Work", [] { work_together(true); },
       "shingle: rank [02]: waited 4.00 s in a maximum over all for rank 1 to come; rank 1 is stopped"},
      {"Exit",
       [] {
         const auto world = make_world();
         world->barrier();
         if (world->local_ranks()[0] == stopped_rank) test::stop_this_process();
       },
       "shingle: rank [02]: waited 10.00 s in MPI_Finalize for the other processes; rank 1 is stopped"}};
  return all;
}

class MpiPlace : public testing::TestWithParam<Place> {};
TEST_P(MpiPlace, Stops) {
  GetParam().act();
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MpiPlace);
INSTANTIATE_TEST_SUITE_P(MpiPlace, MpiPlace,
                         testing::ValuesIn(launched_by_mpi() ? places() : std::vector<Place>{}),
                         [](const auto& test) { return test.param.name; });

TEST(MpiBusy, Works) {
  if (!launched_by_mpi()) GTEST_SKIP() << "this is no process of a world";
  work_together(false);
}

// --------------------------------------------------------------------------------- in the test itself

TEST(BusyRank, IsWaitedFor) {
  if (launched_by_mpi()) GTEST_SKIP() << "this is a process of a world";
  const auto outcome = test::under_mpirun(2, "MpiBusy.*");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("[rank 0: succeeded]"), HasSubstr("[rank 1: succeeded]")));
}

class StoppedRank : public testing::TestWithParam<Place> {};
TEST_P(StoppedRank, IsNamedByTheDeadline) {
  const auto outcome = test::under_mpirun(3, "*MpiPlace*/" + GetParam().name);
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.text, ContainsRegex(GetParam().others_say));
  EXPECT_THAT(outcome.text, testing::Not(HasSubstr("FAILED  ")));
  EXPECT_LT(outcome.time.count(), 25);
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoppedRank);
INSTANTIATE_TEST_SUITE_P(Places, StoppedRank,
                         testing::ValuesIn(launched_by_mpi() ? std::vector<Place>{} : places()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace shingle::stopped_rank_test
