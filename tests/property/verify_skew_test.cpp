// How far ranks may run ahead of each other: what the order of the verifier claims, against every
// interleaving of random plans that notify and await (docs/concepts/proofs.md, "Epochs").
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "base/file.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/hand_plan.hpp"
#include "support/interleavings.hpp"
#include "verify/order/order.hpp"

namespace shingle::verify_skew_test {
namespace {

using namespace test;

using Random = std::mt19937_64;

int draw(Random& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

Hand empty_plan(int world) {
  Problem p;
  p.op = Op::gemm_allreduce;
  p.world = world;
  p.m = 4, p.n = 8, p.k = 8;
  return Hand(p);
}

/// A rank is at most an epoch ahead of another.
void follow(Hand& hand, int rank, int other) {
  const auto count = hand.counter("lag");
  hand.await(rank, 0, count, 0);
  hand.notify(other, 0, count, rank);
}

/// Ties ranks to each other by chains of lags.
void tie(Hand& hand, Random& random) {
  for (int rank = 1; rank < hand.world(); ++rank) {
    const int before = draw(random, 0, 3) == 0 ? draw(random, 0, rank - 1) : rank - 1;
    follow(hand, rank, before);
    follow(hand, before, rank);
  }
}

/// Counts of one entry, each on a rank. A count that is set has one writer.
struct Count {
  std::int32_t index;
  int rank, writer, lane;
  bool set;
  std::uint32_t value = 0;
};

void random_step(Hand& hand, Count& count, int lanes, Random& random) {
  const int lane = draw(random, 0, lanes - 1);
  if (draw(random, 0, 2) == 0)
    hand.await(count.rank, lane, count.index, 0);
  else if (count.set)
    hand.notify(count.writer, count.lane, count.index, count.rank, 0,
                count.value += static_cast<std::uint32_t>(draw(random, 1, 2)));
  else
    hand.notify(draw(random, 0, hand.world() - 1), lane, count.index, count.rank, 0,
                static_cast<std::uint32_t>(draw(random, 1, 3)));
}

/// Ranks that notify and await at random: any amounts and numbers of lanes, counts that are added to and
/// counts that are set.
Plan random_program(Random& random) {
  const int world = draw(random, 2, 3), lanes = draw(random, 1, 2);
  Hand hand = empty_plan(world);
  if (lanes == 2) hand.lane("second");
  if (draw(random, 0, 3) > 0) tie(hand, random);
  std::vector<Count> counts;
  for (int c = draw(random, 1, 3); c > 0; --c) {
    const bool set = draw(random, 0, 3) == 0;
    counts.push_back({hand.counter("count", 1, set ? CounterKind::set : CounterKind::add),
                      draw(random, 0, world - 1), draw(random, 0, world - 1), draw(random, 0, lanes - 1),
                      set});
  }
  for (int step = draw(random, world, world * 3); step > 0; --step)
    random_step(hand, counts[static_cast<std::size_t>(draw(random, 0, static_cast<int>(counts.size()) - 1))],
                lanes, random);
  const auto idle = hand.counter("idle");
  for (int rank = 0; rank < world; ++rank)
    for (int lane = 0; lane < lanes; ++lane)
      if (hand.plan.ranks[rank].lanes[lane].steps.empty()) hand.notify(rank, lane, idle, rank);
  hand.count();
  return hand.plan;
}

/// A count to which ranks add that only chains of lags tie to each other, as in the plan of
/// tests/data/plans/lag_chain_race.json.
Plan random_chain(Random& random) {
  Hand hand = empty_plan(draw(random, 3, 5));
  tie(hand, random);
  const auto credit = hand.counter("credit");
  const int owner = draw(random, 0, hand.world() - 1);
  const bool early = draw(random, 0, 1) == 0;
  if (early) hand.await(owner, 0, credit, 0);
  for (int rank = 0; rank < hand.world(); ++rank)
    if (rank != owner && draw(random, 0, 2) > 0)
      hand.notify(rank, 0, credit, owner, 0, static_cast<std::uint32_t>(draw(random, 1, 3)));
  if (!early) hand.await(owner, 0, credit, 0);
  hand.count();
  return hand.plan;
}

/// Gives every await of an unset target one of those that its count allows; most the whole of it, or none.
void draw_targets(Plan& plan, Random& random) {
  for (RankPlan& rank : plan.ranks)
    for (Lane& lane : rank.lanes)
      for (Step& step : lane.steps)
        if (auto* await = std::get_if<Await>(&step)) {
          const int growth = static_cast<int>(
              plan.counters[await->counter.counter].growth[await->counter.rank][await->counter.entry]);
          if (plan.counters[await->counter.counter].name == "lag") continue;
          const int how = draw(random, 0, 3);
          await->target = static_cast<std::uint32_t>(how == 0   ? 0
                                                     : how == 1 ? draw(random, 0, growth)
                                                                : growth);
        }
}

struct Known {
  Budget budget;
  Schedule schedule;
  std::unique_ptr<Order> order;
};

/// Nothing if the plan does not finish, or if the order says that it is not bounded.
std::unique_ptr<Known> known(const Plan& plan) {
  for (std::int32_t epochs = 3; epochs <= 96; epochs *= 2) {
    auto result = std::make_unique<Known>();
    result->schedule = run_greedily(plan, epochs, false);
    if (!result->schedule.stuck.empty()) return nullptr;
    result->order = std::make_unique<Order>(plan, result->schedule, Setting::alone, result->budget);
    if (!result->order->needs_more_epochs())
      return result->order->unbounded() < 0 ? std::move(result) : nullptr;
  }
  ADD_FAILURE() << "no number of epochs is enough";
  return nullptr;
}

struct Tally {
  int programs = 0, long_lags = 0;
  std::int64_t pairs = 0, longer = 0;
};

/// Every lag that the order claims holds in every interleaving.
void compare(const Plan& plan, Tally& tally) {
  const auto claimed = known(plan);
  if (!claimed) return;
  const auto truth = Interleavings::explore(plan, 24, 20000);
  if (!truth) return;
  ++tally.programs;
  const auto& places = truth->places();
  std::vector<std::vector<std::int32_t>> segments(places.size(),
                                                  std::vector<std::int32_t>(claimed->schedule.epochs));
  for (std::size_t i = 0; i < claimed->schedule.segments.size(); ++i) {
    const Segment& s = claimed->schedule.segments[i];
    for (std::size_t p = 0; p < places.size() && s.lane >= 0; ++p)
      if (places[p].rank == s.rank && places[p].lane == s.lane && places[p].step == s.step)
        segments[p][s.epoch] = static_cast<std::int32_t>(i);
  }
  int longest = 0;
  for (std::size_t x = 0; x < places.size(); ++x)
    for (std::size_t y = 0; y < places.size(); ++y) {
      int lag = 0;
      while (lag < claimed->schedule.epochs && !claimed->order->knows(segments[x][lag], segments[y][0]))
        ++lag;
      ++tally.pairs;
      if (lag == claimed->schedule.epochs) {
        ++tally.longer;
        continue;
      }
      ASSERT_GE(lag, truth->lag(x, y))
          << "rank " << places[x].rank << " lane " << places[x].lane << " step " << places[x].step
          << " does not always come " << lag << " epochs after rank " << places[y].rank << " lane "
          << places[y].lane << " step " << places[y].step << "\n"
          << to_json(plan);
      tally.longer += lag > truth->lag(x, y);
      longest = std::max(longest, lag);
    }
  tally.long_lags += longest > 3;
}

/// The programs were not all of a kind that says nothing, and most of what is true is claimed.
void expect_telling(const Tally& tally, int programs, int long_lags) {
  std::printf("%d programs, %d with lags above 3; %ld lags, %ld of them longer than in any interleaving\n",
              tally.programs, tally.long_lags, static_cast<long>(tally.pairs),
              static_cast<long>(tally.longer));
  EXPECT_GE(tally.programs, programs);
  EXPECT_GE(tally.long_lags, long_lags);
  EXPECT_LT(tally.longer * 5, tally.pairs);
}

TEST(VerifySkew, RandomProgramsKnowNothingThatAnInterleavingDenies) {
  Random random(20261123);
  Tally tally;
  for (int i = 0; i < 4000 && !HasFatalFailure(); ++i) {
    Plan plan = random_program(random);
    draw_targets(plan, random);
    compare(plan, tally);
  }
  expect_telling(tally, 200, 20);
}

TEST(VerifySkew, ChainsOfLagsAreKnownToTheirEnds) {
  Random random(7);
  Tally tally;
  for (int i = 0; i < 200 && !HasFatalFailure(); ++i) {
    Plan plan = random_chain(random);
    draw_targets(plan, random);
    compare(plan, tally);
  }
  expect_telling(tally, 100, 50);
}

TEST(VerifySkew, AddsOfEpochsToComeCountHoweverFarTheyAre) {
  const Plan plan =
      plan_from_json(read_file(SHINGLE_TEST_SOURCE_DIR "/tests/data/plans/lag_chain_race.json", 1 << 20));
  const Proof proof = verify(plan);
  EXPECT_EQ(proof.rule, "race") << proof.failure;
}

}  // namespace
}  // namespace shingle::verify_skew_test
