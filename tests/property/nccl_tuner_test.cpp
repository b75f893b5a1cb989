// What the tuner plugin is made of: ranks change their choices at the same call whatever their order, and an
// iteration is found in a sequence of calls.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "nccl_tuner/iteration.hpp"
#include "nccl_tuner/proposals.hpp"
#include "nccl_tuner/sampler.hpp"

namespace shingle::nccl_tuner::nccl_tuner_test {
namespace {

/// Ranks that make calls, one at a time in an order of the test's choosing; each call's choice is recorded.
class Ranks {
 public:
  explicit Ranks(std::uint32_t ranks) {
    for (std::uint32_t i = 0; i < ranks; ++i) ranks_.push_back(std::make_unique<Rank>(shared_, ranks));
  }

  void call(std::size_t rank, std::uint64_t signature = 7) {
    Rank& at = *ranks_[rank];
    at.calls.push(signature);
    for (const Change& change : at.proposals.poll(at.calls)) at.channels = change.choice.channels;
    at.told.push_back(at.channels);
  }
  /// Rank 0 proposes, if it may.
  bool propose(std::uint8_t channels, std::uint64_t ahead) {
    Rank& leader = *ranks_[0];
    if (leader.told.empty() || leader.proposals.is_open() || !leader.proposals.free()) return false;
    const Change change{{}, {-1, -1, channels}};
    leader.proposals.propose({&change, 1}, leader.calls, ahead);
    return true;
  }
  std::size_t made(std::size_t rank) const { return ranks_[rank]->told.size(); }
  bool committed() const { return ranks_[0]->proposals.was_committed(); }
  /// Of rank 0's calls: how often another rank was told something else.
  int disagreements() const {
    int count = 0;
    for (const auto& rank : ranks_)
      for (std::size_t i = 0; i < std::min(rank->told.size(), ranks_[0]->told.size()); ++i)
        count += rank->told[i] != ranks_[0]->told[i];
    return count;
  }
  int last(std::size_t rank) const { return ranks_[rank]->told.back(); }

 private:
  struct Rank {
    Rank(Proposal& shared, std::uint32_t ranks) : proposals(shared, ranks) {}
    CallHistory calls;
    Proposals proposals;
    int channels = 0;
    std::vector<int> told;
  };
  Proposal shared_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

RC_GTEST_PROP(Proposals, ChangeAllRanksAtTheSameCallOrNone, ()) {
  const auto count = *rc::gen::inRange<std::uint32_t>(1, 6);
  const auto ahead = *rc::gen::element<std::uint64_t>(1, 2, 5, 20, 60);
  const auto drift = *rc::gen::element<std::size_t>(1, 10, 100);  // that ranks may be apart
  Ranks ranks(count);
  std::mt19937 random(*rc::gen::arbitrary<unsigned>());
  int committed = 0, proposed = 0;
  for (int step = 0; step < 4000; ++step) {
    const std::size_t rank = random() % count;
    std::size_t least = ranks.made(0);
    for (std::size_t i = 1; i < count; ++i) least = std::min(least, ranks.made(i));
    if (ranks.made(rank) < least + drift) ranks.call(rank);
    if (random() % 8 == 0) {
      committed += proposed > 0 && ranks.committed();
      proposed += ranks.propose(static_cast<std::uint8_t>(1 + random() % 60), ahead);
    }
  }
  RC_ASSERT(ranks.disagreements() == 0);
  RC_ASSERT(proposed > 0);
  RC_CLASSIFY(committed > 0, "some were committed");
  // Ranks that are never further apart than that always agree.
  if (ahead > 2 * drift + 2) RC_ASSERT(committed > 0);
}

TEST(Proposals, AreCommittedWhereAllSeeThemInTime) {
  Ranks ranks(3);
  for (int i = 0; i < 10; ++i)
    for (const std::size_t rank : {0, 1, 2}) ranks.call(rank);
  ASSERT_TRUE(ranks.propose(5, 4));
  for (int i = 0; i < 3; ++i)
    for (const std::size_t rank : {0, 1, 2}) ranks.call(rank);
  EXPECT_EQ(ranks.last(0), 0) << "not yet";
  for (const std::size_t rank : {0, 1, 2}) ranks.call(rank);
  for (const std::size_t rank : {0, 1, 2}) EXPECT_EQ(ranks.last(rank), 5);
  EXPECT_EQ(ranks.disagreements(), 0);
}

TEST(Proposals, AreGivenUpWhereOneRankIsTooFarAhead) {
  Ranks ranks(2);
  for (int i = 0; i < 30; ++i) ranks.call(1);
  ranks.call(0);
  ASSERT_TRUE(ranks.propose(5, 20));
  for (int i = 0; i < 40; ++i) ranks.call(0);
  EXPECT_FALSE(ranks.propose(6, 20)) << "the other has not said so";
  ranks.call(1);
  EXPECT_EQ(ranks.last(0), 0);
  EXPECT_EQ(ranks.last(1), 0);
  EXPECT_TRUE(ranks.propose(6, 20)) << "now it has";
}

TEST(Proposals, AreGivenUpWhereARankMadeOtherCalls) {
  Ranks ranks(2);
  ranks.call(1, 99);  // which the leader did not make
  for (int i = 0; i < 10; ++i)
    for (const std::size_t rank : {0, 1}) ranks.call(rank);
  ASSERT_TRUE(ranks.propose(5, 4));
  for (int i = 0; i < 20; ++i)
    for (const std::size_t rank : {0, 1}) ranks.call(rank);
  EXPECT_EQ(ranks.last(0), 0);
  EXPECT_EQ(ranks.last(1), 0);
}

TEST(Proposals, FreezeWhereARankIsGone) {
  Ranks ranks(3);
  for (const std::size_t rank : {0, 1, 2}) ranks.call(rank);
  ASSERT_TRUE(ranks.propose(5, 4));
  for (int i = 0; i < 20; ++i)
    for (const std::size_t rank : {0, 1}) ranks.call(rank);
  EXPECT_EQ(ranks.last(0), 0);
  EXPECT_EQ(ranks.last(1), 0);
  EXPECT_FALSE(ranks.propose(6, 4));
}

// ---- Iterations.

/// Pushes a sequence so many times; returns how many calls were made when an iteration of its length was
/// known for good, 0 if never.
std::size_t known_after(Iteration& iteration, const std::vector<std::uint64_t>& sequence, int times) {
  std::size_t calls = 0, known = 0;
  for (int i = 0; i < times; ++i)
    for (const std::uint64_t signature : sequence) {
      iteration.push(signature);
      ++calls;
      if (iteration.period() != sequence.size())
        known = 0;
      else if (known == 0)
        known = calls;
    }
  return known;
}

TEST(Iteration, OfLayersThatRepeatIsTheWhole) {
  // FSDP: gathers forward, gathers and scatters backward, of 32 layers and an embedding.
  std::vector<std::uint64_t> sequence{9};
  sequence.insert(sequence.end(), 32, 1);
  for (int layer = 0; layer < 32; ++layer) sequence.insert(sequence.end(), {1, 2});
  sequence.insert(sequence.end(), {9, 8});
  Iteration iteration;
  const std::size_t known = known_after(iteration, sequence, 12);
  EXPECT_GT(known, 0u);
  EXPECT_LE(known, 8 * sequence.size());
}

TEST(Iteration, OfOneCallIsOne) {
  Iteration iteration;
  EXPECT_GT(known_after(iteration, {5}, 100), 0u);
}

TEST(Iteration, SurvivesAnInterruption) {
  Iteration iteration;
  const std::vector<std::uint64_t> sequence{1, 2, 3, 2, 1, 4};
  ASSERT_GT(known_after(iteration, sequence, 1000), 0u);
  const std::vector<std::uint64_t> evaluation{7, 7, 7, 8};
  for (const std::uint64_t signature : evaluation) iteration.push(signature);
  EXPECT_EQ(iteration.period(), 0u);
  EXPECT_GT(known_after(iteration, sequence, 20), 0u);
}

TEST(Iteration, IsNotSeenInNoise) {
  Iteration iteration;
  std::mt19937_64 random(3);
  for (int i = 0; i < 50000; ++i) {
    iteration.push(random() % 3);
    ASSERT_EQ(iteration.period(), 0u) << i;
  }
}

RC_GTEST_PROP(Iteration, IsFoundAndBeginsOnceAPeriod, ()) {
  const auto sequence = *rc::gen::resize(60, rc::gen::nonEmpty(rc::gen::container<std::vector<std::uint64_t>>(
                                                 rc::gen::inRange<std::uint64_t>(0, 4))));
  Iteration iteration;
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < 60 * sequence.size() + 2000; ++i) {
    if (iteration.push(sequence[i % sequence.size()]) == Iteration::Event::begins) begins.push_back(i);
  }
  const std::size_t period = iteration.period();
  RC_ASSERT(period > 0u);
  RC_ASSERT(sequence.size() % period == 0u);  // a sequence may itself be a repetition
  RC_ASSERT(begins.size() >= 3u);
  RC_ASSERT(begins.back() - begins[begins.size() - 2] == period);
  const auto calls = iteration.calls();
  RC_ASSERT(calls.size() == period);
  const std::size_t last = 60 * sequence.size() + 2000 - 1;
  for (std::size_t i = 0; i < period; ++i)
    RC_ASSERT(calls[i] == sequence[(last + 1 - period + i) % sequence.size()]);
}

// ---- Samples.

TEST(Sampler, TimesIterationsAfterTheySettle) {
  Sampler sampler;
  Sampler::Clock::time_point now{};
  std::vector<double> samples;
  for (int i = 0; i < 8; ++i) {
    if (const auto us = sampler.on_begin(now)) samples.push_back(*us);
    now += std::chrono::milliseconds(i < 3 ? 500 : 10);  // slow at first
  }
  EXPECT_EQ(samples, (std::vector<double>{10000, 10000, 10000, 10000}));
  sampler.restart();
  EXPECT_FALSE(sampler.on_begin(now));
}

TEST(Sampler, TakesManyShortIterationsTogether) {
  Sampler sampler;
  Sampler::Clock::time_point now{};
  std::vector<double> samples;
  for (int i = 0; i < 5000; ++i) {
    if (const auto us = sampler.on_begin(now)) samples.push_back(*us);
    now += std::chrono::microseconds(20);
  }
  ASSERT_GT(samples.size(), 3u);
  ASSERT_LT(samples.size(), 20u);
  for (const double us : samples) EXPECT_DOUBLE_EQ(us, 20);
}

}  // namespace
}  // namespace shingle::nccl_tuner::nccl_tuner_test
