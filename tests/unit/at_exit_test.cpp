// Actions for the exit of a process, and forked children, which run none of them.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "backend/at_exit.hpp"

namespace shingle::at_exit_test {
namespace {

using namespace std::chrono_literals;

/// Runs `action` in a forked child. Returns its exit status; -1 if it did not end in time.
template <class Action>
int status_of_child(Action action) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    action();
    ::_exit(100);
  }
  int status = 0;
  for (const auto deadline = std::chrono::steady_clock::now() + 20s; ::waitpid(child, &status, WNOHANG) == 0;
       std::this_thread::sleep_for(1ms))
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AtExit, ActsWithTheStatusOfTheProcessThatMadeIt) {
  EXPECT_EQ(status_of_child([] {
              const AtExit one([](int status) { ::_exit(status + 1); });
              std::exit(3);
            }),
            4);
}

TEST(AtExit, DoesNotActOnceDestroyedNorInAForkedChild) {
  bool acted = false;
  const AtExit parents([&](int) { ::_exit(50); });
  {
    const AtExit gone([&](int) { acted = true; });
  }
  EXPECT_EQ(status_of_child([] { std::exit(3); }), 3);
  EXPECT_FALSE(acted);
}

/// Another thread of the parent may hold the lock at the fork: no exit of a child may wait for it.
TEST(AtExit, AForkedChildExitsWhateverAnotherThreadOfItsParentDid) {
  std::atomic<bool> done = false;
  std::thread busy([&] {
    while (!done) const AtExit one([](int) {});
  });
  bool exits = true;
  for (int i = 0; i < 20 && exits; ++i) {
    exits = status_of_child([] {
              const AtExit own([](int status) { ::_exit(status + 1); });
              std::exit(3);
            }) == 4 &&
            status_of_child([] { std::exit(5); }) == 5;
  }
  done = true;
  busy.join();
  EXPECT_TRUE(exits);
}

}  // namespace
}  // namespace shingle::at_exit_test
