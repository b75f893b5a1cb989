// A process that waits by itself, outside of all calls: it learns that another process is gone, and acts
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>

#include "backend/processes.hpp"
#include "backend/watcher.hpp"
#include "shingle/base/error.hpp"
#include "support/free_port.hpp"
#include "support/in_processes.hpp"
#include "support/join_as.hpp"

namespace shingle::watcher_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& reason) {
    return reason.what();
  }
}

// ---------------------------------------------------------------------------------------- other processes

/// A process that waits by itself for up to `longest`, as in a call of CUDA that ends only once communicators
/// are aborted. Returns the exit code: 0 if it was ended once, for `expected`; empty: if it was not ended.
int wait_alone(Processes& processes, const std::string& expected, std::chrono::milliseconds longest) {
  std::promise<void> ended;
  std::atomic<int> ends = 0;
  std::string reason;
  Watcher watcher;
  watcher.start(20ms, {.look = [&] { processes.peek(); },
                       .fail =
                           [&](const std::exception_ptr& error) {
                             reason = reason_of(error);
                             processes.tell(reason);
                             if (ends++ == 0) ended.set_value();
                           }});
  const bool early = ended.get_future().wait_for(longest) == std::future_status::ready;
  if (early) std::this_thread::sleep_for(100ms);  // no second end
  watcher.stop();
  if (early == expected.empty() || ends > 1) return 1;
  return reason == expected ? 0 : 2;
}

/// Ranks that wait by themselves while `fault` happens to rank 1. All others must end for `expected`.
void expect_waits_end(const std::function<void()>& fault, const std::string& expected) {
  constexpr int size = 3;
  const int port = test::free_port();
  const std::chrono::milliseconds longest = expected.empty() ? 500ms : 20'000ms;
  const std::vector<int> codes = test::in_processes(size, [&](int rank) {
    const auto processes = connect(test::process(rank, size, port), 20e6);
    processes->barrier(20e6);
    if (rank != 1) return wait_alone(*processes, expected, longest);
    std::this_thread::sleep_for(50ms);
    fault();
    return 0;
  });
  EXPECT_EQ(codes[0], 0);  // which has rank 1's connection
  EXPECT_EQ(codes[2], 0);  // which hears of it through rank 0
}

TEST(Watcher, APeerThatDiesEndsTheWaitsOfTheOthers) {
  expect_waits_end([] { ::raise(SIGKILL); }, "rank 1 is gone: its connection ended");
}

TEST(Watcher, APeerThatExitsWithAnErrorEndsTheWaitsOfTheOthers) {
  expect_waits_end([] { std::exit(3); }, "rank 1 has exited with status 3");
}

TEST(Watcher, APeerThatLeavesInOrderEndsNoWait) {
  expect_waits_end([] {}, "");
  expect_waits_end([] { std::exit(0); }, "");
}

// ---------------------------------------------------------------------------------------------- the thread

TEST(Watcher, LooksUntilItIsStopped) {
  std::atomic<int> looks = 0;
  Watcher watcher;
  watcher.start(1ms, {.look = [&] { ++looks; }, .fail = [](const std::exception_ptr&) { ADD_FAILURE(); }});
  while (looks < 3) std::this_thread::sleep_for(1ms);
  watcher.stop();
  const int before = looks;
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(looks, before);
  watcher.stop();
}

TEST(Watcher, StopsSoonWhateverTheInterval) {
  const auto begin = Clock::now();
  {
    Watcher never_started, watcher;
    watcher.start(1h, {.look = [] {}, .fail = [](const std::exception_ptr&) {}});
  }
  EXPECT_LT(Clock::now() - begin, 30s);
}

/// ThreadSanitizer checks that calls and looks exclude each other.
TEST(Watcher, DoesNotLookDuringACall) {
  int of_calls = 0;
  std::atomic<int> looks = 0;
  Watcher watcher;
  watcher.start(1ms, {.look = [&] { ++of_calls, ++looks; }, .fail = [](const std::exception_ptr&) {}});
  for (int i = 0; i < 10'000; ++i) {
    const Watcher::Hold hold(watcher);
    ++of_calls;
    const Watcher::Hold nested(watcher);
    ++of_calls;
  }
  {
    const Watcher::Hold hold(watcher);
    const int before = looks;
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(looks, before);
  }
  while (looks == 0) std::this_thread::sleep_for(1ms);
  watcher.stop();
  EXPECT_EQ(of_calls, 20'000 + looks);
}

TEST(Watcher, LooksDuringAPause) {
  std::atomic<int> looks = 0;
  int of_calls = 0;  // ThreadSanitizer checks that the end of a pause waits for a look
  Watcher watcher;
  watcher.start(1ms, {.look = [&] { ++of_calls, ++looks; }, .fail = [](const std::exception_ptr&) {}});
  Watcher::Hold hold(watcher);
  for (int i = 0; i < 20; ++i) {
    const int before = looks;
    {
      const Watcher::Pause pause(hold);
      while (looks == before) std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(of_calls, looks);
  }
  const int before = looks;
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(looks, before);
  const Watcher::Hold other(watcher);
  const Watcher::Pause pause(hold);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(looks, before) << "it lifts one hold of two";
}

/// As a launch that the driver blocks until communicators are aborted.
TEST(Watcher, AFailureEndsWorkThatBlocksDuringAPause) {
  std::atomic<bool> aborted = false;
  bool failed = false;
  Watcher watcher;
  watcher.start(1ms, {.look = [] { throw Timeout("rank 1 is gone"); },
                      .fail =
                          [&](const std::exception_ptr&) {
                            aborted = true;
                            std::this_thread::sleep_for(50ms);
                            failed = true;
                          }});
  Watcher::Hold hold(watcher);
  {
    const Watcher::Pause pause(hold);
    while (!aborted) std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(failed);
}

TEST(Watcher, SeveralThreadsMayHold) {
  std::atomic<int> looks = 0, held = 0;
  Watcher watcher;
  const auto look = [&] {
    EXPECT_EQ(held, 0);
    ++looks;
  };
  watcher.start(1ms, {.look = look, .fail = [](const std::exception_ptr&) {}});
  std::array<std::future<void>, 4> threads;
  for (auto& thread : threads)
    thread = std::async(std::launch::async, [&] {
      for (int i = 0; i < 1000; ++i) {
        const Watcher::Hold hold(watcher);
        ++held;
        std::this_thread::yield();
        --held;
      }
    });
  for (auto& thread : threads) thread.get();
  while (looks == 0) std::this_thread::sleep_for(1ms);
}

TEST(Watcher, FailsOnceAndCallsWaitForIt) {
  std::atomic<int> fails = 0;
  std::atomic<bool> failing = false;
  std::string reason;
  Watcher watcher;
  watcher.start(1ms, {.look = [] { throw Timeout("rank 1 is gone"); },
                      .fail =
                          [&](const std::exception_ptr& error) {
                            failing = true;
                            std::this_thread::sleep_for(100ms);
                            reason = reason_of(error);
                            ++fails;
                          }});
  while (!failing) std::this_thread::sleep_for(1ms);
  {
    const Watcher::Hold hold(watcher);
    EXPECT_EQ(fails, 1);
    EXPECT_EQ(reason, "rank 1 is gone");
  }
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(fails, 1);
}

TEST(Watcher, StopWaitsForAFailure) {
  std::atomic<bool> failing = false, failed = false;
  Watcher watcher;
  watcher.start(1ms, {.look = [] { throw Timeout("rank 1 is gone"); },
                      .fail =
                          [&](const std::exception_ptr&) {
                            failing = true;
                            std::this_thread::sleep_for(100ms);
                            failed = true;
                          }});
  while (!failing) std::this_thread::sleep_for(1ms);
  watcher.stop();
  EXPECT_TRUE(failed);
}

}  // namespace
}  // namespace shingle::watcher_test
