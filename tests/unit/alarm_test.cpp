// What takes too long is said, and an exit that blocks ends.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "backend/alarm.hpp"

namespace shingle::alarm_test {
namespace {

using namespace std::chrono_literals;

TEST(Alarm, RingsOnceUnlessItIsTooLate) {
  std::atomic<int> rings = 0;
  {
    const Alarm in_time(1h, [&] { ++rings; });
  }
  EXPECT_EQ(rings, 0);
  {
    const Alarm late(1ms, [&] { ++rings; });
    while (rings == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(rings, 1);
}

/// A child whose exit handler never returns.
int status_of_exit(int code) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    std::atexit([] { std::this_thread::sleep_for(1h); });
    bound_exit(200ms);
    std::exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(BoundExit, EndsAProcessWhoseExitHandlerBlocks) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(status_of_exit(3), 3);
  EXPECT_EQ(status_of_exit(0), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

}  // namespace
}  // namespace shingle::alarm_test
