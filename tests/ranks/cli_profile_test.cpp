// What `profile` writes where it has no time, and what it refuses.
#include <map>

#include "cli_program.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle::cli_profile_test {
namespace {

using testing::HasSubstr;

TEST_F(Cli, ProfilesNoLongerThanItsBudget) {
  const Outcome outcome =
      run("profile --world 2 --workers 3 --name mine --budget 0.001 --link 2GB/s,10us --out " +
          path("mine.json"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the budget is spent; figures from the backend: "));
  EXPECT_THAT(outcome.err, HasSubstr("allreduce of 2 ranks"));
  const Machine mine = read_machine(path("mine.json"));
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.workers, 3);
  EXPECT_EQ(mine.ranks, 2);
  EXPECT_EQ(mine.link, (Link{2, 10}));
  EXPECT_TRUE(mine.curves.empty());
}

TEST_F(Cli, SaysBeforehandHowLongAProfileTakes) {
  const Outcome outcome = run("profile --world 2 --workers 3 --budget 0.001 --out " + path("mine.json"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              testing::StartsWith("takes about 1 s; nothing new is begun after 0 s (--budget)\n"));
}

/// `auto` and `signal` would trust it.
TEST_F(Cli, KeepsNoProfileThatTheBudgetCutShort) {
  const Outcome outcome = run("profile --world 2 --workers 3 --most-spread 0 --budget 0.001 --keep");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no profile is kept: the budget of 0.001 s ended before "));
}

/// No two runs take the same time to a millionth.
TEST_F(Cli, DoesNotWriteWhatItCouldNotMeasureSteadily) {
  write("mine.json", "as it was");
  const Outcome outcome =
      run("profile --world 2 --workers 2 --contention --most-spread 0.0001 --out " + path("mine.json"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err,
              HasSubstr("no profile is written: measurements spread too much: computation beside "
                        "communication by "));
  EXPECT_THAT(outcome.err, HasSubstr("raise --most-spread"));
  EXPECT_EQ(read_file(path("mine.json"), 100), "as it was");
  expect_refused("profile --most-spread much", "'much' is not a percentage");
  expect_refused("profile --keep --contention", "--keep needs a whole profile");
}

/// Of what communication and computation take from each other it says how far the fit is off.
TEST_F(Cli, ProfilesContentionOfThreads) {
  const Outcome outcome =
      run("profile --world 2 --workers 2 --repeat 1 --contention --out " + path("mine.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("residuals of 9 samples"));
  const Machine mine = read_machine(path("mine.json"));
  ASSERT_EQ(mine.contention_samples.size(), 9u);
  std::map<ComputationKind, int> kinds;
  for (const ContentionSample& sample : mine.contention_samples) {
    EXPECT_GT(sample.calls, 0);
    EXPECT_GT(sample.moved.once, 0);
    ++kinds[sample.computation];
  }
  for (const ComputationKind kind : all_computation_kinds) EXPECT_EQ(kinds[kind], 3) << name(kind);
  EXPECT_TRUE(mine.contention.product_residual && mine.contention.collective_residual);
  EXPECT_GE(mine.contention.steals, 0);
  EXPECT_LE(mine.contention.steals, 1);
}

TEST_F(Cli, RefusesToProfileOnABadBase) {
  expect_refused("profile --budget -1", "--budget");
  expect_refused("profile --dtype f8", "f8");
  expect_refused("profile --chunk 1K", "--chunk = 1024 is outside");
  expect_refused("profile --world 2 --workers 3 --chunk 64K", "a chunk size needs collectives");
  expect_refused("profile --base nowhere", "no machine 'nowhere'");
  expect_refused("profile --workers 3 --base " SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json",
                 "base h200x8 has 132 workers, this machine 3");
}

}  // namespace
}  // namespace shingle::cli_profile_test
