// Processes that meet over TCP, here as threads: what they tell each other, and that nobody waits for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include "backend/processes.hpp"
#include "net/rendezvous.hpp"
#include "net/wire.hpp"
#include "shingle/base/error.hpp"
#include "support/free_port.hpp"
#include "support/in_processes.hpp"
#include "support/join_as.hpp"

namespace shingle::processes_test {
namespace {

using std::chrono::milliseconds;
using test::free_port, test::process;
using testing::ElementsAre, testing::HasSubstr;

/// Each as a thread; what they throw is thrown here.
void together(int size, const std::function<void(int rank, int port)>& action) {
  const int port = free_port();
  std::vector<std::future<void>> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(std::async(std::launch::async, action, rank, port));
  for (auto& one : all) one.get();
}

std::string timeout_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Timeout& timeout) {
    return timeout.what();
  }
  return "no timeout";
}

TEST(Processes, TellEachOtherWhatTheyHave) {
  for (const int size : {1, 2, 5})
    together(size, [size](int rank, int port) {
      const auto processes = connect(process(rank, size, port), 10e6);
      for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(processes->from_first(
                      rank == 0 ? "first" : std::string(static_cast<std::size_t>(rank) * 1000, 'x'), 10e6),
                  "first");
        const std::vector<double> most = processes->all_max({double(rank), -double(rank), 7}, 10e6);
        EXPECT_THAT(most, ElementsAre(size - 1, 0, 7));
        processes->barrier(10e6);
        processes->watch();
      }
      const auto all = processes->all_gather(std::string(static_cast<std::size_t>(rank) * 300000, 'y'), 10e6);
      for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r].size(), r * 300000);
    });
}

TEST(Processes, LateOnesAreNamed) {
  const int port = free_port();
  EXPECT_THAT(timeout_of([&] { connect(process(0, 3, port), 0.2e6); }),
              HasSubstr("ranks 1, 2 did not join within 200"));
  EXPECT_THAT(timeout_of([&] { connect(process(1, 3, port), 0.2e6); }),
              HasSubstr("rank 0 cannot be reached"));
}

TEST(Processes, WhoDoesNotComeToABarrierIsNamed) {
  together(3, [](int rank, int port) {
    const auto processes = connect(process(rank, 3, port), 10e6);
    if (rank == 2) return std::this_thread::sleep_for(milliseconds(500));
    EXPECT_THAT(timeout_of([&] { processes->barrier(0.2e6); }), HasSubstr("rank 2 did not come within 200"));
  });
}

/// A wait elsewhere has failed: one process asks, those that watch or wait answer, and all name who does not.
TEST(Processes, WhoDoesNotAnswerIsNamedToAll) {
  for (const int asking : {0, 1})
    together(4, [asking](int rank, int port) {
      const auto processes = connect(process(rank, 4, port), 10e6);
      processes->barrier(10e6);
      if (rank == 2) return std::this_thread::sleep_for(milliseconds(4000));
      const std::string heard = timeout_of([&] {
        if (rank == asking) {
          const std::string reason = "no epoch has ended";
          const std::string text = reason + who_are_silent(processes->silent(reason, roll_call_us));
          processes->tell(text);
          throw Timeout(text);
        }
        if (rank == 3) processes->barrier(10e6);
        for (int i = 0; i < 1000; ++i, std::this_thread::sleep_for(milliseconds(10))) processes->watch();
      });
      EXPECT_EQ(heard, "no epoch has ended; rank 2 does not answer")
          << "rank " << rank << ", asking " << asking;
    });
}

/// Rank 0 has more time than rank 1: it is not rank 0 that is missing.
TEST(Processes, ARankThatHasWaitedLongEnoughLearnsWhoIsMissing) {
  together(3, [](int rank, int port) {
    const auto processes = connect(process(rank, 3, port), 10e6);
    if (rank == 2) return std::this_thread::sleep_for(milliseconds(4000));
    EXPECT_EQ(timeout_of([&] { processes->barrier(rank == 0 ? 20e6 : 0.2e6); }),
              "rank 1 waited 200.00 ms; rank 2 does not answer");
  });
}

TEST(Processes, DataFromBeforeASummonsAreNoAnswer) {
  together(2, [](int rank, int port) {
    if (rank == 1) {
      auto [connection, reply] = test::join_as({"127.0.0.1", port + 1}, net::job_token(), 1, 2);
      connection.receive(0, net::deadline_in(10e6));
      connection.send(net::Kind::data, "of a barrier", net::deadline_in(10e6));
      return std::this_thread::sleep_for(milliseconds(2000));
    }
    const auto processes = connect(process(rank, 2, port), 10e6);
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_THAT(processes->silent("a wait", 0.3e6), ElementsAre(1));
  });
}

TEST(Processes, AllMayAnswer) {
  together(3, [](int rank, int port) {
    const auto processes = connect(process(rank, 3, port), 10e6);
    processes->barrier(10e6);
    // At one time, as where each waits for the next.
    const std::string heard = timeout_of([&] {
      const std::string text = "a ring" + who_are_silent(processes->silent("a ring", roll_call_us));
      processes->tell(text);
      throw Timeout(text);
    });
    EXPECT_EQ(heard, "a ring") << "rank " << rank;
  });
}

TEST(Processes, TheFirstMayNotAnswer) {
  together(2, [](int rank, int port) {
    const auto processes = connect(process(rank, 2, port), 10e6);
    processes->barrier(10e6);
    if (rank == 0) return std::this_thread::sleep_for(milliseconds(3000));
    EXPECT_THAT(processes->silent("a wait", 0.3e6), ElementsAre(0));
  });
}

TEST(Processes, TheDeadAreNoticedBeforeTheDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  together(2, [](int rank, int port) {
    if (rank == 1) {  // joins, and its connection just ends, as of a process that was killed
      auto [connection, reply] = test::join_as({"127.0.0.1", port + 1}, net::job_token(), 1, 2);
      connection.receive(0, net::deadline_in(10e6));  // all are there
      return;
    }
    const auto processes = connect(process(rank, 2, port), 10e6);
    EXPECT_THAT(timeout_of([&] { processes->barrier(60e6); }), HasSubstr("rank 1 is gone"));
    EXPECT_THAT(timeout_of([&] { processes->watch(); }), HasSubstr("rank 1 is gone"));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Processes, AFailureReachesEverybody) {
  together(3, [](int rank, int port) {
    const auto processes = connect(process(rank, 3, port), 10e6);
    if (rank == 1) {
      processes->tell("rank 1 has burnt its toast");
    } else if (rank == 0) {
      const std::string heard = timeout_of([&] { processes->barrier(20e6); });
      EXPECT_EQ(heard, "rank 1 has burnt its toast");
      processes->tell(heard);
    } else {
      EXPECT_EQ(timeout_of([&] {
                  for (int i = 0; i < 1000; ++i, std::this_thread::sleep_for(milliseconds(10)))
                    processes->watch();
                }),
                "rank 1 has burnt its toast");
    }
  });
}

TEST(Processes, WhoLeavesASoundWorldIsNoFailure) {
  together(2, [](int rank, int port) {
    const auto processes = connect(process(rank, 2, port), 10e6);
    processes->barrier(10e6);
    if (rank == 1) return;
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_NO_THROW(processes->watch());
    EXPECT_THAT(timeout_of([&] { processes->barrier(10e6); }), HasSubstr("rank 1 has left"));
  });
}

/// Rank 1 sends frames, perhaps early data of a collective call, and may end. Returns what rank 0 finds by
/// peek(): twice the same, as that consumes nothing.
std::string found_by_peek(const std::vector<net::Frame>& frames, bool ends) {
  const int port = free_port();
  auto first = std::async(std::launch::async, [port] { return connect(process(0, 2, port), 10e6); });
  auto [connection, reply] = test::join_as({"127.0.0.1", port + 1}, net::job_token(), 1, 2);
  connection.receive(0, net::deadline_in(10e6));
  const auto processes = first.get();
  for (const auto& [kind, payload] : frames) connection.send(kind, payload, net::deadline_in(10e6));
  if (ends) connection = {};
  std::this_thread::sleep_for(milliseconds(50));
  const auto peek = [&] { processes->peek(); };
  const std::string found = timeout_of(peek);
  EXPECT_EQ(timeout_of(peek), found);
  return found;
}

TEST(Processes, PeekLooksBehindData) {
  using net::Kind;
  const net::Frame data{Kind::data, "of a barrier"}, summons{Kind::summons, "a wait"},
      failure{Kind::failure, "rank 1 fell over"}, goodbye{Kind::goodbye, {}};
  for (const bool ends : {false, true}) {
    const std::string gone = ends ? "rank 1 is gone: its connection ended" : "no timeout";
    EXPECT_EQ(found_by_peek({}, ends), gone);
    EXPECT_EQ(found_by_peek({data}, ends), gone);
    EXPECT_EQ(found_by_peek({summons}, ends), gone);
    const net::Frame much{Kind::data, std::string(30'000, 'x')};
    EXPECT_EQ(found_by_peek({much}, ends), gone);
    EXPECT_EQ(found_by_peek({much, goodbye}, ends), "no timeout");
    EXPECT_EQ(found_by_peek({much, failure}, ends), "rank 1 fell over");
    EXPECT_EQ(found_by_peek({goodbye}, ends), "no timeout");
    EXPECT_EQ(found_by_peek({data, goodbye}, ends), "no timeout");
    EXPECT_EQ(found_by_peek({failure}, ends), "rank 1 fell over");
    EXPECT_EQ(found_by_peek({data, failure, goodbye}, ends), "rank 1 fell over");
    EXPECT_EQ(found_by_peek({summons, failure}, ends), "rank 1 fell over");
  }
}

/// Neither data nor a reason fit into what the kernel holds for a process that reads nothing.
TEST(Processes, PeekFindsALongReasonBehindMuchData) {
  const int port = free_port();
  auto first = std::async(std::launch::async, [port] { return connect(process(0, 2, port), 10e6); });
  auto [connection, reply] = test::join_as({"127.0.0.1", port + 1}, net::job_token(), 1, 2);
  connection.receive(0, net::deadline_in(10e6));
  const auto processes = first.get();
  const std::string data(8'000'000, 'x'), reason(60'000, 'y');
  auto sent = std::async(std::launch::async, [&connection = connection, &data, &reason] {
    connection.send(net::Kind::data, data, net::deadline_in(20e6));
    connection.send(net::Kind::failure, reason, net::deadline_in(20e6));
  });
  std::string found = "no timeout";
  for (int i = 0; i < 1000 && found == "no timeout"; ++i, std::this_thread::sleep_for(milliseconds(10)))
    found = timeout_of([&] { processes->peek(); });
  sent.get();
  EXPECT_EQ(found, reason);
  auto gathered = std::async(std::launch::async, [&] { return processes->all_gather("", 20e6).at(1); });
  connection.receive(2 * data.size(), net::deadline_in(20e6));
  EXPECT_EQ(gathered.get(), data) << "peek() leaves data to the calls";
}

/// A call may end with a part of the next message read.
TEST(Processes, PeekGoesOnWithinAMessage) {
  const int port = free_port();
  auto first = std::async(std::launch::async, [port] { return connect(process(0, 3, port), 10e6); });
  auto one = test::join_as({"127.0.0.1", port + 1}, net::job_token(), 1, 3).connection;
  auto two = test::join_as({"127.0.0.1", port + 1}, net::job_token(), 2, 3).connection;
  for (net::Connection* each : {&one, &two}) each->receive(0, net::deadline_in(10e6));
  const auto processes = first.get();
  auto barrier = std::async(std::launch::async, [&] { processes->barrier(10e6); });
  const std::string frame = net::header_of(net::Kind::failure, 16) + "rank 1 fell over";
  const auto send_part = [&](std::size_t begin, std::size_t end) {
    ASSERT_EQ(::send(one.fd(), frame.data() + begin, end - begin, 0), static_cast<ssize_t>(end - begin));
  };
  one.send(net::Kind::data, {}, net::deadline_in(10e6));
  send_part(0, 20);
  std::this_thread::sleep_for(milliseconds(100));
  two.send(net::Kind::data, {}, net::deadline_in(10e6));
  barrier.get();
  EXPECT_NO_THROW(processes->peek());
  send_part(20, frame.size());
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(timeout_of([&] { processes->peek(); }), "rank 1 fell over");
  EXPECT_EQ(timeout_of([&] { processes->watch(); }), "rank 1 fell over");
}

TEST(Processes, PeekRefusesMalformedMessages) {
  const int port = free_port();
  auto first = std::async(std::launch::async, [port] { return connect(process(0, 2, port), 10e6); });
  auto [connection, reply] = test::join_as({"127.0.0.1", port + 1}, net::job_token(), 1, 2);
  connection.receive(0, net::deadline_in(10e6));
  const auto processes = first.get();
  const std::string other = "GET / HTTP/1.1";
  ASSERT_EQ(::send(connection.fd(), other.data(), other.size(), 0), static_cast<ssize_t>(other.size()));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_THAT(timeout_of([&] { processes->peek(); }), HasSubstr("rank 1 sent a malformed message"));
}

TEST(Processes, PeekLeavesDataAndAnswersNoSummons) {
  together(2, [](int rank, int port) {
    const auto processes = connect(process(rank, 2, port), 10e6);
    if (rank == 0) {
      for (int i = 0; i < 20; ++i, std::this_thread::sleep_for(milliseconds(10))) processes->peek();
      processes->barrier(10e6);
      EXPECT_THAT(processes->silent("a wait", 0.3e6), ElementsAre(1));
    } else {
      processes->barrier(10e6);
      for (int i = 0; i < 100; ++i, std::this_thread::sleep_for(milliseconds(10))) processes->peek();
    }
  });
}

/// What rank 0 hears of rank 1, whose process exits, or a fork of which does.
std::string heard_of_exit(const std::function<void()>& exit_of_one) {
  const std::string heard = std::string(testing::TempDir()) + "/heard_of_exit." + std::to_string(::getpid());
  const int port = free_port();
  test::in_processes(2, [&](int rank) {
    const auto processes = connect(process(rank, 2, port), 10e6);
    processes->barrier(10e6);
    if (rank == 1) exit_of_one();
    const std::string reason = timeout_of([&] {
      for (int i = 0; i < 50; ++i, std::this_thread::sleep_for(milliseconds(10))) processes->peek();
    });
    if (rank == 0) std::ofstream(heard) << reason;
    return 0;
  });
  std::ifstream in(heard);
  std::string reason;
  std::getline(in, reason);
  std::remove(heard.c_str());
  return reason;
}

TEST(Processes, AnExitSaysGoodbyeOrItsStatus) {
  EXPECT_EQ(heard_of_exit([] { std::exit(0); }), "no timeout");
  EXPECT_EQ(heard_of_exit([] { std::exit(3); }), "rank 1 has exited with status 3");
  EXPECT_EQ(heard_of_exit([] { ::_exit(0); }), "rank 1 is gone: its connection ended");
  EXPECT_EQ(heard_of_exit([] { ::raise(SIGKILL); }), "rank 1 is gone: its connection ended");
  EXPECT_EQ(heard_of_exit([] {
              if (::fork() == 0) std::exit(3);
              ::wait(nullptr);
            }),
            "no timeout");
}

/// While processes join each other, an exit tells nothing: the others see that the connection ends.
TEST(Processes, AnExitWhileOthersJoinIsAnEndOfTheConnection) {
  const int port = free_port();
  const pid_t child = ::fork();
  if (child == 0) {
    std::thread joining([port] { timeout_of([port] { connect(process(0, 3, port), 20e6); }); });
    std::this_thread::sleep_for(milliseconds(1000));
    std::exit(3);
  }
  auto one = test::join_as({"127.0.0.1", port + 1}, net::job_token(), 1, 3).connection;
  EXPECT_THROW(one.receive(1000, net::deadline_in(20e6)), net::Lost);
  ::waitpid(child, nullptr, 0);
}

/// A process leaves its world, and waits for the others, which still work by themselves.
TEST(Processes, WhoLeavesEarlyIsNoFailure) {
  for (const int early : {0, 1})
    together(3, [early](int rank, int port) {
      const auto processes = connect(process(rank, 3, port), 10e6);
      processes->barrier(10e6);
      if (rank == early) {
        processes->part();
        EXPECT_NE(timeout_of([&] { processes->barrier(0.2e6); }), "no timeout");
        return;
      }
      for (int i = 0; i < 200; ++i, std::this_thread::sleep_for(milliseconds(10))) processes->peek();
    });
}

TEST(Processes, ThoseOfAnotherJobAreToldSo) {
  const int port = free_port();
  auto other = std::async(std::launch::async,
                          [&] { return timeout_of([&] { connect(process(0, 3, port), 2e6, {}); }); });
  try {
    connect(process(1, 2, port), 5e6, {});
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("awaits 3 processes"));
  }
  EXPECT_THAT(other.get(), HasSubstr("ranks 1, 2 did not join")) << "it may have been a stranger";
}

TEST(Processes, ASecretMakesAMistakeOfAnotherJobsProcess) {
  const int port = free_port();
  const net::Token secret{"hush", "SHINGLE_TOKEN", true};
  auto other = std::async(std::launch::async, [&] { return connect(process(0, 3, port), 10e6, secret); });
  EXPECT_THROW(connect(process(1, 2, port), 5e6, secret), InvalidArgument);
  EXPECT_THROW(other.get(), InvalidArgument);
}

TEST(Processes, WhoGivesMoreThanIsExpectedIsToldSo) {
  EXPECT_THROW(alone()->all_gather("four", 1e6, 3), InvalidArgument);
}

TEST(Processes, RankZeroHasToBeSomewhere) {
  Launched launched = process(1, 2, 29500);
  launched.master_host.clear();
  EXPECT_THROW(connect(launched, 1e6), InvalidArgument);
}

TEST(Processes, ATakenPortIsSaid) {
  const int port = free_port();
  const net::Socket taken = net::listen_on({"127.0.0.1", port + 1});
  try {
    connect(process(0, 2, port), 1e6);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot listen on port"));
  }
}

}  // namespace
}  // namespace shingle::processes_test
