// Strangers at the port where a world's processes meet: none is taken for one of them, and none costs more
// than its own place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <thread>

#include "backend/processes.hpp"
#include "shingle/base/error.hpp"
#include "support/free_port.hpp"
#include "support/join_as.hpp"

namespace shingle::test::stranger_test {
namespace {

using std::chrono::duration;
using testing::HasSubstr;

const net::Token secret{"of the tests", "SHINGLE_TOKEN", true};

/// Files that this process may open.
void allow_files(rlim_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, std::max(limit.rlim_cur, count));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

class Strangers : public testing::Test {
 protected:
  Launched process(int rank, int size) const { return test::process(rank, size, at.port - 1); }
  /// Rank 0 of two.
  std::future<std::unique_ptr<Processes>> first(double timeout_us, const net::Token& token = secret) const {
    return std::async(std::launch::async, [=, this] { return connect(process(0, 2), timeout_us, token); });
  }
  /// Whether rank 1 joins rank 0 beside the strangers, and both hear each other.
  void expect_sound(std::future<std::unique_ptr<Processes>> zero) const {
    auto one = std::async(std::launch::async, [&] {
      const auto processes = connect(process(1, 2), 10e6, secret);
      EXPECT_EQ(processes->all_gather("one", 10e6)[0], "zero");
    });
    const auto processes = zero.get();
    EXPECT_EQ(processes->all_gather("zero", 10e6)[1], "one");
    one.get();
  }
  static std::string end_of(std::future<std::unique_ptr<Processes>> future) {
    try {
      future.get();
    } catch (const Timeout& timeout) {
      return timeout.what();
    }
    return "joined";
  }

  const net::Address at{"127.0.0.1", free_port() + 1};
};

void say(const net::Socket& to, const std::string& bytes) {
  ::send(to.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

TEST_F(Strangers, ThatAreSilentUseUpNoDeadline) {
  auto zero = first(10e6);
  std::vector<net::Socket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(dial(at));
  for (int i = 0; i < 20; ++i) {
    silent.push_back(dial(at));
    say(silent.back(), net::header_of(net::Kind::hello, 1).substr(0, 1));
  }
  const auto begin = net::Clock::now();
  expect_sound(std::move(zero));
  EXPECT_LT(net::Clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(Strangers, ThatAreManyDoNotOverrunTheDeadline) {
  allow_files(4096);
  const auto begin = net::Clock::now();
  auto zero = first(3e6);
  std::vector<net::Socket> idle;
  while (idle.size() < 1500 && net::Clock::now() - begin < std::chrono::milliseconds(2500)) try {
      idle.push_back(net::connect_to(at, net::deadline_in(0.1e6)));
    } catch (const net::Unreachable&) {
    }
  EXPECT_GT(idle.size(), 50u) << "a busy machine connects few";
  EXPECT_THAT(end_of(std::move(zero)), HasSubstr("rank 1 did not join within 3"));
  EXPECT_LT(duration<double>(net::Clock::now() - begin).count(), 5.0);
}

TEST_F(Strangers, ThatAreManyLeaveRoomForARank) {
  allow_files(4096);
  auto zero = first(20e6);
  std::vector<net::Socket> idle;
  for (int i = 0; i < 600; ++i) idle.push_back(dial(at));
  expect_sound(std::move(zero));
}

TEST_F(Strangers, ThatClaimMuchCostNoMemory) {
  auto zero = first(10e6);
  std::vector<net::Socket> liars;
  for (const std::uint64_t claim : {std::uint64_t{1} << 20, std::uint64_t{1} << 30, ~std::uint64_t{0}}) {
    liars.push_back(dial(at));
    say(liars.back(), net::header_of(net::Kind::hello, claim) + std::string(100, 'x'));
    // Turned away by the header alone: what is to be read is a challenge, and then the end.
    net::Connection connection(std::move(liars.back()));
    connection.receive(net::nonce_bytes, net::deadline_in(5e6));
    EXPECT_THROW(connection.receive(0, net::deadline_in(5e6)), net::Lost);
  }
  expect_sound(std::move(zero));
}

TEST_F(Strangers, ThatSpeakAnotherProtocolAreTurnedAway) {
  auto zero = first(10e6);
  const net::Socket browser = dial(at);
  say(browser, "GET / HTTP/1.1\r\n\r\n");
  expect_sound(std::move(zero));
}

TEST_F(Strangers, AreNotTakenForARank) {
  auto zero = first(10e6);
  EXPECT_THROW(join_as(at, {}, 1, 2), net::Untrusted) << "without a token";
  EXPECT_THROW(join_as(at, {"guessed", "", true}, 1, 2), net::Untrusted);
  EXPECT_THROW(net::join(at, {"shingle tuner 2", secret}, std::string(8, '\0'), net::deadline_in(5e6)),
               net::Untrusted)
      << "who has come for something else";
  expect_sound(std::move(zero));
}

TEST_F(Strangers, CannotReplayWhatARankHasSaid) {
  // What rank 1 says to a listener that is none of ours, said again to rank 0.
  const net::Address trap{"127.0.0.1", free_port() + 1};
  const net::Socket listener = net::listen_on(trap);
  auto victim =
      std::async(std::launch::async, [&] { EXPECT_THROW(join_as(trap, secret, 1, 2), net::NetError); });
  ASSERT_TRUE(net::ready(listener, POLLIN, net::deadline_in(5e6)));
  net::Connection caught(net::accept_from(listener));
  caught.send(net::Kind::challenge, std::string(net::nonce_bytes, 'n'), net::deadline_in(5e6));
  const net::Frame said = caught.receive(1000, net::deadline_in(5e6));
  caught = {};
  victim.get();

  auto zero = first(10e6);
  net::Connection replay(dial(at));
  replay.receive(net::nonce_bytes, net::deadline_in(5e6));
  replay.send(said.kind, said.payload, net::deadline_in(5e6));
  EXPECT_THROW(replay.receive(1000, net::deadline_in(5e6)), net::Lost);
  expect_sound(std::move(zero));
}

TEST_F(Strangers, WithoutASecretDoNotFailAWorldByWhatTheyClaim) {
  auto zero = first(3e6, {});
  for (const auto& [rank, size] : {std::pair{1, 99}, {2, 2}, {0, 2}, {-1, 2}, {1 << 30, 2}}) {
    const net::Joined joined = join_as(at, {}, rank, size);
    EXPECT_NE(joined.reply[0], '\0') << rank << " of " << size;
  }
  EXPECT_THAT(end_of(std::move(zero)), HasSubstr("rank 1 did not join"));
}

TEST_F(Strangers, AreCountedWhereARankIsMissing) {
  auto zero = first(2e6);
  EXPECT_THROW(join_as(at, {}, 1, 2), net::Untrusted);
  const net::Socket browser = dial(at);
  say(browser, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(end_of(std::move(zero)),
              HasSubstr("turned away: 1 of another protocol, 1 without this job's token (SHINGLE_TOKEN)"));
}

TEST_F(Strangers, ThatHoldThePortAreNotTakenForRankZero) {
  const auto holds_the_port = [&](const net::Token& token) {
    net::Acceptor acceptor(net::listen_on(at), {"shingle world 1", token});
    auto one = std::async(std::launch::async, [&] { return connect(process(1, 2), 1e6, secret); });
    std::optional<net::Guest> guest = acceptor.next(net::deadline_in(1.5e6));
    EXPECT_FALSE(guest);
    return end_of(std::move(one));
  };
  EXPECT_THAT(holds_the_port({}), HasSubstr("another SHINGLE_TOKEN"));
  EXPECT_THAT(holds_the_port({"guessed", "", true}), HasSubstr("another SHINGLE_TOKEN"));
}

TEST_F(Strangers, ThatHoldThePortCannotForgeRankZerosProof) {
  const net::Socket listener = net::listen_on(at);
  auto one = std::async(std::launch::async, [&] { return connect(process(1, 2), 1e6, secret); });
  ASSERT_TRUE(net::ready(listener, POLLIN, net::deadline_in(5e6)));
  net::Connection caught(net::accept_from(listener));
  caught.send(net::Kind::challenge, std::string(net::nonce_bytes, 'n'), net::deadline_in(5e6));
  const net::Frame said = caught.receive(1000, net::deadline_in(5e6));
  // The proof that rank 1 has given, sent back.
  caught.send(net::Kind::welcome, said.payload.substr(net::nonce_bytes, net::proof_bytes) + "reply",
              net::deadline_in(5e6));
  EXPECT_THAT(end_of(std::move(one)), HasSubstr("does not know this job's token"));
}

TEST_F(Strangers, ThatHoldThePortForAWhileAreOutwaited) {
  auto one = std::async(std::launch::async, [&] { return connect(process(1, 2), 20e6, secret); });
  {
    const net::Socket listener = net::listen_on(at);
    ASSERT_TRUE(net::ready(listener, POLLIN, net::deadline_in(5e6)));
    net::Connection caught(net::accept_from(listener));
    caught.send(net::Kind::challenge, "short", net::deadline_in(5e6));
  }
  auto zero = first(10e6);
  EXPECT_NE(zero.get(), nullptr);
  EXPECT_NE(one.get(), nullptr);
}

// ---- Processes of the world that send what makes no sense.

TEST_F(Strangers, AProcessThatSendsTooMuchIsNamed) {
  auto zero = first(10e6);
  net::Joined one = join_as(at, secret, 1, 2);
  const auto processes = zero.get();
  say(net::Socket(::dup(one.connection.fd())), net::header_of(net::Kind::data, std::uint64_t{1} << 30));
  try {
    processes->all_gather("zero", 5e6);
    FAIL() << "no exception";
  } catch (const Timeout& timeout) {
    EXPECT_THAT(timeout.what(), HasSubstr("rank 1 sent a malformed message: a frame of 1.0 GiB"));
  }
}

TEST_F(Strangers, AListThatIsCutShortIsNamed) {
  net::Acceptor acceptor(net::listen_on(at), {"shingle world 1", secret});
  auto one = std::async(std::launch::async, [&] {
    const auto processes = connect(process(1, 2), 5e6, secret);
    processes->all_gather("one", 5e6);
    return connect(process(0, 1), 1e6, secret);
  });
  auto guest = acceptor.next(net::deadline_in(5e6));
  ASSERT_TRUE(guest);
  net::Connection to = (*std::move(guest)).admit(net::Packer().number(std::uint8_t{0}).number(2).take());
  to.send(net::Kind::hello, {}, net::deadline_in(5e6));
  // A length that reaches beyond what is there.
  to.send(net::Kind::data, net::Packer().number(std::uint64_t{1} << 40).bytes("zero").take(),
          net::deadline_in(5e6));
  EXPECT_THAT(end_of(std::move(one)), HasSubstr("rank 0 sent a malformed message"));
}

}  // namespace
}  // namespace shingle::test::stranger_test
