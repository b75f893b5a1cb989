// What every way of agreement of the NCCL tuner promises: ranks that make their calls when they like are told
// the same for the same call.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "nccl_tuner/proposals.hpp"
#include "nccl_tuner/remote_proposals.hpp"

namespace shingle::nccl_tuner::nccl_tuner_agreement_test {
namespace {

using Ranks = std::vector<std::unique_ptr<Agreement>>;  // the first leads

Ranks in_memory(std::uint32_t count) {
  static Proposal shared;
  new (&shared) Proposal;
  Ranks ranks;
  for (std::uint32_t i = 0; i < count; ++i) ranks.push_back(std::make_unique<Proposals>(shared, count));
  return ranks;
}

Ranks over_sockets(std::uint32_t count) {
  std::vector<net::Connection> peers;
  Ranks ranks(1);
  for (std::uint32_t i = 1; i < count; ++i) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    peers.emplace_back(net::Socket(ends[0]));
    ranks.push_back(std::make_unique<RemoteFollower>(net::Connection(net::Socket(ends[1]))));
  }
  ranks[0] = std::make_unique<RemoteLeader>(std::move(peers));
  return ranks;
}

struct Way {
  const char* name;
  Ranks (*make)(std::uint32_t count);
};

class NcclTunerAgreement : public testing::TestWithParam<Way> {
 protected:
  static constexpr std::uint32_t count = 3;
  static constexpr int calls = 6000;

  /// How a rank goes about its calls.
  struct Habit {
    unsigned pause = 50;  ///< us, at most, now and then
    int drift = 40;       ///< calls that it may be ahead of the slowest
    std::uint64_t ahead = 60;
    int leaves_after = calls;
  };

  void run(const Habit& habit, int leaver = -1) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < count; ++rank)
      threads.emplace_back([&, rank] {
        Habit own = habit;
        if (static_cast<int>(rank) != leaver) own.leaves_after = calls;
        work(rank, own);
        if (own.leaves_after < calls) ranks[rank].reset();
        made[rank] = calls;
      });
    for (std::thread& thread : threads) thread.join();
  }

  void work(std::uint32_t rank, const Habit& habit) {
    std::mt19937 random(rank);
    CallHistory history;
    int channels = 0;
    for (int i = 0; i < habit.leaves_after; ++i) {
      while (i > slowest() + habit.drift) std::this_thread::yield();
      if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % habit.pause));
      history.push(static_cast<std::uint64_t>(i % 5));
      const bool was_open = ranks[rank]->is_open();
      for (const Change& change : ranks[rank]->poll(history)) channels = change.choice.channels;
      told[rank].push_back(channels);
      if (rank == 0) {
        if (was_open && !ranks[0]->is_open()) committed += ranks[0]->was_committed();
        propose(history, habit.ahead, random);
      }
      ++made[rank];
    }
  }
  void propose(const CallHistory& history, std::uint64_t ahead, std::mt19937& random) {
    if (ranks[0]->is_open() || !ranks[0]->free()) return;
    ++proposed;
    const Change change{{}, {-1, -1, static_cast<std::uint8_t>(1 + random() % 64)}};
    ranks[0]->propose({&change, 1}, history, 1 + random() % ahead);
  }
  int slowest() const {
    int least = calls;
    for (const std::atomic<int>& of : made) least = std::min(least, of.load());
    return least;
  }
  void expect_the_same() const {
    for (std::uint32_t rank = 1; rank < count; ++rank)
      for (std::size_t i = 0; i < std::min(told[rank].size(), told[0].size()); ++i)
        ASSERT_EQ(told[rank][i], told[0][i]) << "rank " << rank << ", call " << i;
  }

  Ranks ranks = GetParam().make(count);
  std::atomic<int> made[count] = {};
  std::vector<int> told[count];
  int proposed = 0, committed = 0;
};

TEST_P(NcclTunerAgreement, TellsAllRanksTheSame) {
  run({});
  expect_the_same();
  EXPECT_GT(proposed, 20);
  EXPECT_GT(committed, 0);
}

TEST_P(NcclTunerAgreement, DoesSoWhereProposalsComeTooLate) {
  run({.drift = 300, .ahead = 4});
  expect_the_same();
  EXPECT_GT(proposed, committed);
}

TEST_P(NcclTunerAgreement, CommitsWhereAllAreNearEnough) {
  run({.drift = 2, .ahead = 200});
  expect_the_same();
  EXPECT_GT(committed, 5);
}

TEST_P(NcclTunerAgreement, FreezesWhereOneLeaves) {
  run({.leaves_after = 2000}, 2);
  expect_the_same();
  EXPECT_EQ(told[0].size(), std::size_t{calls});
  EXPECT_EQ(told[0].back(), told[0][3000]);
}

INSTANTIATE_TEST_SUITE_P(Ways, NcclTunerAgreement,
                         testing::Values(Way{"memory", in_memory}, Way{"sockets", over_sockets}),
                         [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace shingle::nccl_tuner::nccl_tuner_agreement_test
