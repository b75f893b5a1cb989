// The tuner plugin and those who reach its rendezvous: strangers are not believed, and of ranks nothing is
// taken that is malformed, nor waited for without end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "nccl_tuner/call.hpp"
#include "nccl_tuner/remote_proposals.hpp"
#include "net/rendezvous.hpp"
#include "net/wire.hpp"
#include "support/free_port.hpp"
#include "support/nccl_harness.hpp"

namespace shingle::test::nccl_tuner_stranger_test {
namespace {

using nccl_tuner::CallHistory;
using nccl_tuner::Change;
using nccl_tuner::Choice;
using nccl_tuner::Message;
using nccl_tuner::most_message_bytes;
using nccl_tuner::Patience;
using nccl_tuner::RemoteFollower;
using nccl_tuner::RemoteLeader;
using testing::ElementsAre, testing::HasSubstr, testing::IsEmpty;

constexpr std::size_t mib = 1 << 20;
constexpr Patience short_patience{.decide_us = 0.15e6, .wait_us = 0.3e6};

net::Clock::time_point soon() {
  return net::deadline_in(5e6);
}

/// History of ranks that make the same call again and again.
std::uint64_t hash_after(std::uint64_t call, std::uint64_t signature) {
  CallHistory history;
  for (std::uint64_t i = 0; i <= call; ++i) history.push(signature);
  return *history.hash(call);
}

/// A proposal that a rank which makes such calls acknowledges; bytes, so that it may make no sense.
std::string proposal(std::uint64_t number, std::uint64_t hash, std::uint64_t seen, std::uint64_t effective,
                     std::uint32_t count, const std::string& changes) {
  return net::Packer()
      .number(std::uint8_t{0})
      .number(number)
      .number(seen)
      .number(hash)
      .number(effective)
      .number(count)
      .bytes(changes)
      .take();
}

std::string word(Message::Kind kind, std::uint64_t number) {
  return packed(Message{.kind = kind, .number = number});
}

/// Collective, size class, algorithm, protocol, channels.
using Bytes = std::array<int, 5>;
std::string bytes_of(const Bytes& change, std::uint32_t chunk_bytes = 0) {
  std::string bytes;
  for (const int byte : change) bytes += static_cast<char>(byte);
  return bytes + net::Packer().number(chunk_bytes).take();
}

struct Odd {
  const char* name;
  Bytes change;
  std::uint32_t chunk_bytes = 0;
};
const Odd odd_changes[] = {{"collective", {255, 20, 1, 2, 8}},
                           {"collectives", {5, 20, 1, 2, 8}},
                           {"size class", {4, 255, 1, 2, 8}},
                           {"size classes", {4, 64, 1, 2, 8}},
                           {"both", {255, 255, 1, 2, 8}},
                           {"algorithm", {4, 20, 7, 2, 8}},
                           {"least algorithm", {4, 20, -128, 2, 8}},
                           {"protocol", {4, 20, 1, 3, 8}},
                           {"least protocol", {4, 20, 1, -128, 8}},
                           {"no protocol", {4, 20, 1, -1, 8}},
                           {"no algorithm", {4, 20, -1, 1, 8}},
                           {"channels", {4, 20, 1, 2, 65}},
                           {"least chunk", {4, 20, 1, 2, 8}, 1},
                           {"chunk", {4, 20, 1, 2, 8}, ~0u}};

// ---- One follower, and a leader that says what the test likes.

class NcclTunerFollower : public testing::Test {
 protected:
  NcclTunerFollower() { begin(); }

  void begin() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    leader = net::Connection(net::Socket(ends[0]));
    follower = std::make_unique<RemoteFollower>(net::Connection(net::Socket(ends[1])), short_patience);
    history = {};
  }
  /// So many calls; what was agreed for any of them.
  std::vector<Change> call(int times) {
    std::vector<Change> changes;
    for (int i = 0; i < times; ++i) {
      history.push(signature);
      for (const Change& change : follower->poll(history)) changes.push_back(change);
    }
    return changes;
  }
  void say(const std::string& bytes) const { leader.send(net::Kind::data, bytes, soon()); }
  std::string sound_proposal(std::uint64_t number, std::uint64_t effective) const {
    return proposal(number, hash_after(7, signature), 7, effective, 1, bytes_of({4, 20, 1, 2, 8}, 1 << 20));
  }

  static constexpr std::uint64_t signature = 77;
  net::Connection leader;
  std::unique_ptr<RemoteFollower> follower;
  CallHistory history;
};

TEST_F(NcclTunerFollower, TakesWhatMakesSense) {
  say(sound_proposal(1, 24));
  say(word(Message::Kind::commit, 1));
  const auto changes = call(32);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0], (Change{{4, 20}, Choice{1, 2, 8, 1 << 20}}));
  EXPECT_EQ(follower->trouble(), "");
}

TEST_F(NcclTunerFollower, TakesNoChangeOfWhatThereIsNot) {
  for (const Odd& odd : odd_changes) {
    begin();
    say(proposal(1, hash_after(7, signature), 7, 24, 1, bytes_of(odd.change, odd.chunk_bytes)));
    say(word(Message::Kind::commit, 1));
    EXPECT_THAT(call(32), IsEmpty()) << odd.name;
    EXPECT_THAT(follower->trouble(), HasSubstr("malformed")) << odd.name;
  }
}

TEST_F(NcclTunerFollower, TakesNoMoreChangesThanThereAre) {
  for (const std::uint32_t count : {0u, 2u, 17u, ~0u}) {
    EXPECT_EQ(nccl_tuner::parse_message(
                  proposal(1, 0, 7, 24, count, count == 0 ? "123456789" : bytes_of({4, 20, 1, 2, 8}))),
              std::nullopt)
        << count;
  }
}

TEST_F(NcclTunerFollower, TakesNoProposalThatIsTooFarAway) {
  for (const std::uint64_t effective :
       {std::uint64_t{0}, std::uint64_t{7}, 8 + CallHistory::span, ~std::uint64_t{0}})
    EXPECT_EQ(nccl_tuner::parse_message(proposal(1, 0, 7, effective, 1, bytes_of({4, 20, 1, 2, 8}))),
              std::nullopt)
        << effective;
}

TEST_F(NcclTunerFollower, WaitsNotLongForALeaderThatSaysNothing) {
  say(sound_proposal(1, 9));
  const auto before = net::Clock::now();
  EXPECT_THAT(call(32), IsEmpty());
  EXPECT_LT(net::Clock::now() - before, std::chrono::seconds(3));
  EXPECT_THAT(follower->trouble(), HasSubstr("no decision within 300"));
  EXPECT_FALSE(follower->is_open());
}

TEST_F(NcclTunerFollower, WaitsNotLongForALeaderThatDrips) {
  say(sound_proposal(1, 9));
  auto dripping = std::async(std::launch::async, [&] {
    const std::string bytes = net::header_of(net::Kind::data, most_message_bytes);
    for (std::size_t i = 0; i < 100; ++i) {
      if (::send(leader.fd(), i < bytes.size() ? &bytes[i] : "x", 1, MSG_NOSIGNAL) < 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const auto before = net::Clock::now();
  EXPECT_THAT(call(32), IsEmpty());
  EXPECT_LT(net::Clock::now() - before, std::chrono::milliseconds(1500));
  dripping.get();
}

TEST_F(NcclTunerFollower, HangsUpOnOneWhoTalksOutOfTurn) {
  say(sound_proposal(1, 9));
  say(sound_proposal(2, 9));
  EXPECT_THAT(call(32), IsEmpty());
  EXPECT_THAT(follower->trouble(), HasSubstr("unexpected message"));
  EXPECT_THROW(
      {
        leader.receive(most_message_bytes, soon());  // it had acknowledged
        leader.receive(most_message_bytes, soon());
      },
      net::Lost);
}

TEST_F(NcclTunerFollower, HangsUpOnAFrameOfAGigabyte) {
  const std::string header = net::header_of(net::Kind::data, std::uint64_t{1} << 30);
  ASSERT_EQ(::send(leader.fd(), header.data(), header.size(), 0), static_cast<ssize_t>(header.size()));
  EXPECT_THAT(call(32), IsEmpty());
  EXPECT_THAT(follower->trouble(), HasSubstr("a frame of 1.0 GiB"));
}

// ---- One leader, and a rank that says what the test likes.

class NcclTunerLeader : public testing::Test {
 protected:
  NcclTunerLeader() {
    std::vector<net::Connection> peers;
    for (net::Connection& peer : ranks) {
      int ends[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
      peers.emplace_back(net::Socket(ends[0]));
      peer = net::Connection(net::Socket(ends[1]));
    }
    leader = std::make_unique<RemoteLeader>(std::move(peers), short_patience);
    call(1);
    const Change change{{4, 20}, {1, 2, 8}};
    leader->propose({&change, 1}, history, 100);
  }
  std::size_t call(int times) {
    std::size_t changes = 0;
    for (int i = 0; i < times; ++i) {
      history.push(7);
      changes += leader->poll(history).size();
    }
    return changes;
  }
  void say(std::size_t rank, Message::Kind kind, std::uint64_t number = 1) const {
    ranks[rank].send(net::Kind::data, word(kind, number), soon());
  }

  net::Connection ranks[2];
  std::unique_ptr<RemoteLeader> leader;
  CallHistory history;
};

TEST_F(NcclTunerLeader, CommitsWhereAllHaveAcknowledged) {
  say(0, Message::Kind::acknowledge);
  say(1, Message::Kind::acknowledge);
  EXPECT_EQ(call(120), 1u);
  EXPECT_EQ(leader->trouble(), "");
}

TEST_F(NcclTunerLeader, CountsARankOnce) {
  say(0, Message::Kind::acknowledge);
  say(0, Message::Kind::acknowledge);
  EXPECT_EQ(call(120), 0u);
  EXPECT_THAT(leader->trouble(), HasSubstr("unexpected message"));
}

TEST_F(NcclTunerLeader, CountsNothingOfAnotherProposal) {
  say(0, Message::Kind::acknowledge);
  say(1, Message::Kind::acknowledge, 2);
  EXPECT_EQ(call(120), 0u);
}

TEST_F(NcclTunerLeader, DoesNotCommitAfterOthersMayHaveGivenUp) {
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  say(0, Message::Kind::acknowledge);
  say(1, Message::Kind::acknowledge);
  EXPECT_EQ(call(120), 0u);
  EXPECT_FALSE(leader->was_committed());
  EXPECT_EQ(leader->trouble(), "") << "it may propose again";
}

// ---- The plugin as NCCL loads it.

class NcclTunerStranger : public testing::Test {
 protected:
  NcclTunerStranger() { NcclLog::take(); }

  /// A rank of two, as another thread, whose calls are all the same and begin when `go` is set.
  std::future<int> rank(int calls) {
    return std::async(std::launch::async, [=, this] {
      NcclCommunicator communicator(plugin, id, 2, 2);
      for (const auto end = net::deadline_in(10e6); !go && net::Clock::now() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      int channels = 0;
      for (int i = 0; i < calls; ++i) channels = communicator.call(NcclCollective::allreduce, mib).channels;
      return channels;
    });
  }
  /// What the plugin's rank sees as its leader: it listens before that rank comes, or the rank would itself.
  /// Nothing where no rank proves to know the token.
  static std::optional<net::Connection> lead(net::Socket listener, const net::Token& of, double patience_us) {
    net::Acceptor acceptor(std::move(listener), {"shingle tuner 2", of});
    auto guest = acceptor.next(net::deadline_in(patience_us));
    if (!guest) return std::nullopt;
    net::Connection connection = (*std::move(guest)).admit("\x01");  // wait
    connection.send(net::Kind::data, net::Packer().number(std::uint8_t{1}).number(std::uint32_t{0}).take(),
                    soon());  // all are there, and do not differ
    return connection;
  }

  std::atomic<bool> go{true};
  const net::Address at{"127.0.0.1", free_port() + 1};
  const net::Token secret{"of the tests", "SHINGLE_TOKEN", true};
  const Variable token{"SHINGLE_TOKEN", secret.value},
      rendezvous{"SHINGLE_TUNER_RENDEZVOUS", "127.0.0.1:" + std::to_string(at.port)},
      learn{"SHINGLE_TUNER_LEARN", testing::TempDir() + "never.json"},
      deadline{"SHINGLE_TUNER_DEADLINE", "2s"};
  NcclPlugin plugin{SHINGLE_TEST_NCCL_TUNER};
  const std::uint64_t id = std::uint64_t(::getpid()) << 20;
  const std::uint64_t signature = nccl_tuner::Call{4, mib, 1}.signature();
};

TEST_F(NcclTunerStranger, IsNotFollowedWithoutTheToken) {
  net::Socket listener = net::listen_on(at);
  auto listening = std::async(std::launch::async, [&] { return lead(std::move(listener), {}, 3e6); });
  auto told = rank(10);
  EXPECT_EQ(told.get(), 0);
  EXPECT_FALSE(listening.get());
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("another SHINGLE_TOKEN; NCCL's own choice applies")));
}

TEST_F(NcclTunerStranger, IsNotFollowedWhereItSpeaksAnotherProtocol) {
  const net::Socket listener = net::listen_on(at);
  auto listening = std::async(std::launch::async, [&] {
    for (const auto end = net::deadline_in(3e6); net::Clock::now() < end;)
      if (net::ready(listener, POLLIN, end))
        net::Connection(net::accept_from(listener)).send(net::Kind::data, std::string(100, 'x'), soon());
  });
  EXPECT_EQ(rank(10).get(), 0);
  listening.get();
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("NCCL's own choice applies")));
}

TEST_F(NcclTunerStranger, EvenWithTheTokenWritesNowhere) {
  for (const Odd& odd : odd_changes) {
    go = false;
    net::Socket listener = net::listen_on(at);
    auto told = rank(60);
    auto leader = lead(std::move(listener), secret, 5e6);
    ASSERT_TRUE(leader);
    leader->send(net::Kind::data,
                 proposal(1, hash_after(7, signature), 7, 24, 1, bytes_of(odd.change, odd.chunk_bytes)),
                 soon());
    leader->send(net::Kind::data, word(Message::Kind::commit, 1), soon());
    go = true;
    EXPECT_EQ(told.get(), 0) << odd.name;
  }
  EXPECT_THAT(NcclLog::take(), ElementsAre(testing::AllOf(HasSubstr("stops tuning"), HasSubstr("malformed"))))
      << "once";
}

/// So that what the test above sends would have been taken, had it made sense.
TEST_F(NcclTunerStranger, WithTheTokenIsTheLeader) {
  go = false;
  net::Socket listener = net::listen_on(at);
  auto told = rank(60);
  auto leader = lead(std::move(listener), secret, 5e6);
  ASSERT_TRUE(leader);
  leader->send(net::Kind::data, proposal(1, hash_after(7, signature), 7, 24, 1, bytes_of({4, 20, 1, 2, 8})),
               soon());
  leader->send(net::Kind::data, word(Message::Kind::commit, 1), soon());
  go = true;
  EXPECT_EQ(told.get(), 8);
}

TEST_F(NcclTunerStranger, DoesNotLendItsSharedMemory) {
  char name[64];
  std::snprintf(name, sizeof name, "/shingle-tuner-%u-%016lx", ::getuid(), static_cast<unsigned long>(id));
  const int fd = ::shm_open(name, O_RDWR | O_CREAT, 0600);
  ASSERT_GE(fd, 0);
  ::fchmod(fd, 0666);
  {
    NcclCommunicator communicator(plugin, id, 2);
    EXPECT_EQ(communicator.call(NcclCollective::allreduce, mib).channels, 0);
  }
  ::close(fd);
  ::shm_unlink(name);
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("another user owns it or has access to it")));
}

}  // namespace
}  // namespace shingle::test::nccl_tuner_stranger_test
