// Which cores the ranks of a world of threads compute on.
#include "host/executor/scheduling.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <set>
#include <thread>

#include "host/executor/host_world.hpp"

namespace shingle::host::scheduling_test {
namespace {

TEST(Scheduling, EveryRankHasCoresOfItsOwn) {
  const int usable = usable_cores();
  for (int ranks = 1; ranks <= usable; ++ranks) {
    const int workers = usable / ranks;
    std::set<int> taken;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<int> cores = cores_of(rank, ranks, workers);
      EXPECT_EQ(cores.size(), static_cast<std::size_t>(workers));
      for (const int core : cores)
        EXPECT_TRUE(taken.insert(core).second) << "core " << core << " has two ranks";
    }
  }
}

TEST(Scheduling, RanksThatAreTooManyShareAllCores) {
  EXPECT_TRUE(cores_of(0, usable_cores() + 1, 1).empty());
  EXPECT_TRUE(cores_of(0, 1, usable_cores() + 1).empty());
}

TEST(Scheduling, AThreadStaysOnItsCores) {
  std::thread([] {
    const std::vector<int> all = cores_of(0, 1, usable_cores());
    stay_on({});
    EXPECT_EQ(usable_cores(), static_cast<int>(all.size())) << "no cores: on any";
    stay_on({all.back()});
    EXPECT_EQ(usable_cores(), 1);
    EXPECT_EQ(sched_getcpu(), all.back());
    wake_promptly();  // whatever the kernel makes of it
  }).join();
}

}  // namespace
}  // namespace shingle::host::scheduling_test
