// The proof for a context: calls of other plans come before and after, on the same staging memory. Each plan
// here is proven alone; what it lacks for a context is named.
#include "support/expect_proof.hpp"

namespace shingle::verify_context_test {
namespace {

using namespace test;

/// How a rank knows that a peer's staging memory is free.
enum class Free { begun, read, two_copies };

/// An all-reduce of two ranks: each copies its product to the peer, which sums both.
Hand exchanged(Free by) {
  Hand hand(small(Op::gemm_allreduce));
  const auto product = hand.buffer("product", 8, 8),
             arrived = hand.buffer("arrived", 8, 8, by == Free::two_copies ? 2 : 1);
  const auto begun = hand.counter("begun", 2), stored = hand.counter("stored"), read = hand.counter("read");
  hand.plan.counters[static_cast<std::size_t>(begun)].of_begins = true;
  for (int r = 0; r < 2; ++r) {
    const int peer = 1 - r;
    const Slice own = hand.all(product, r), other = hand.all(arrived, r);
    hand.notify(r, 0, begun, peer, r).step(r, 0, hand.gemm(r, own));
    if (by == Free::begun) hand.await(r, 0, begun, 1, peer);
    if (by == Free::read) hand.await(r, 0, read, 0);  // of the epoch before
    hand.step(r, 0, Copy{own, hand.all(arrived, peer)}).notify(r, 0, stored, peer).await(r, 0, stored);
    const auto parts = r == 0 ? std::vector{own, other} : std::vector{other, own};
    hand.step(r, 0, Hand::pass(parts, hand.all(hand.out, r)));
    if (by != Free::begun) hand.notify(r, 0, read, peer).await(r, 0, begun, 1, peer);
  }
  hand.plan.rounding = sentence(hand.plan.work, statements(hand.plan.work).back());
  return hand;
}

TEST(VerifyContext, APeerMayStoreOnceTheRankHasBegun) {
  expect_proven(exchanged(Free::begun));
  expect_proven(exchanged(Free::begun), Setting::context);
}

TEST(VerifyContext, ThatThePeerHasReadTheLastEpochIsNotEnough) {
  expect_proven(exchanged(Free::read));
  expect_wrong(exchanged(Free::read), "race", {"arrived on rank", "or another call, between epochs"},
               Setting::context);
}

TEST(VerifyContext, AnArenaHasOneCopy) {
  expect_proven(exchanged(Free::two_copies));
  expect_wrong(exchanged(Free::two_copies), "context", {"buffer arrived has 2 copies", "arena has one"},
               Setting::context);
}

TEST(VerifyContext, NobodyReadsAfterTheRankHasEnded) {
  // Rank 1 fetches the product of rank 0. Alone, rank 0 may end before: it overwrites the product only once
  // rank 1 has begun the next epoch.
  for (const bool waits : {false, true}) {
    Hand hand(small(Op::gemm_allreduce));
    const auto product = hand.buffer("product", 8, 8), fetched = hand.buffer("fetched", 8, 8);
    const auto begun = hand.counter("begun", 2), made = hand.counter("made"), read = hand.counter("read");
    hand.plan.counters[static_cast<std::size_t>(begun)].of_begins = true;
    for (int r = 0; r < 2; ++r) hand.notify(r, 0, begun, 1 - r, r).await(r, 0, begun, 1, 1 - r);
    for (int r = 0; r < 2; ++r) hand.step(r, 0, hand.gemm(r, hand.all(product, r))).notify(r, 0, made, 1 - r);
    for (int r = 0; r < 2; ++r) {
      const Slice own = hand.all(product, r), other = hand.all(fetched, r);
      hand.await(r, 0, made).step(r, 0, Copy{hand.all(product, 1 - r), other});
      if (waits) hand.notify(r, 0, read, 1 - r);
      const auto parts = r == 0 ? std::vector{own, other} : std::vector{other, own};
      hand.step(r, 0, Hand::pass(parts, hand.all(hand.out, r)));
    }
    for (int r = 0; r < 2 && waits; ++r) hand.await(r, 0, read);
    hand.plan.rounding = sentence(hand.plan.work, statements(hand.plan.work).back());
    expect_proven(hand);
    if (waits)
      expect_proven(hand, Setting::context);
    else
      expect_wrong(hand, "race", {"product on rank", "or another call, between epochs"}, Setting::context);
  }
}

TEST(VerifyContext, CountsAreZeroBetweenCalls) {
  // The peer tells that it has read, which nobody awaits: the add may come when the rank is in another call.
  Hand late = exchanged(Free::begun);
  const auto told = late.counter("told");
  for (int r = 0; r < 2; ++r) late.notify(r, 0, told, 1 - r);
  expect_proven(late);
  expect_wrong(late, "context", {"may add to told[0] of rank", "after the rank has ended the call"},
               Setting::context);
  Hand early = exchanged(Free::begun);
  const auto soon = early.counter("soon");
  for (int r = 0; r < 2; ++r) {
    auto& steps = early.plan.ranks[static_cast<std::size_t>(r)].lanes[0].steps;
    steps.insert(steps.begin() + 1, Notify{{soon, 1 - r, 0}, 1});  // after that of the begin
    early.plan.ranks[static_cast<std::size_t>(r)].issue.push_back(0);
    early.await(r, 0, soon);
  }
  expect_proven(early);
  expect_wrong(early, "context", {"may add to soon[0] of rank", "before the rank has begun the call"},
               Setting::context);
}

TEST(VerifyContext, AnEntryCountsTheBeginsOfOneRank) {
  Hand hand = exchanged(Free::begun);
  for (int r = 0; r < 2; ++r) {
    auto& steps = hand.plan.ranks[static_cast<std::size_t>(r)].lanes[0].steps;
    steps.insert(steps.begin(), Notify{{0, 1 - r, 1 - r}, 1});  // of the other rank
    hand.plan.ranks[static_cast<std::size_t>(r)].issue.push_back(0);
  }
  expect_wrong(hand, "context", {"adds 1 to begun", "expected 1, by rank"}, Setting::context);
}

TEST(VerifyContext, BeginsAreCountedBeforeAnythingElse) {
  Hand hand = exchanged(Free::begun);
  for (int r = 0; r < 2; ++r)
    std::swap(hand.plan.ranks[static_cast<std::size_t>(r)].lanes[0].steps[0],
              hand.plan.ranks[static_cast<std::size_t>(r)].lanes[0].steps[1]);
  expect_proven(hand);
  expect_wrong(hand, "context",
               {"step 1 (notify) counts the begin of the call", "first steps of lane compute"},
               Setting::context);
}

TEST(VerifyContext, NothingIsLaunchedBeforeTheCall) {
  Hand hand = exchanged(Free::begun);
  const auto polls = hand.lane("engine", LaneKind::copy);
  const auto go = hand.counter("go");
  for (int r = 0; r < 2; ++r) {
    Lane& lane = hand.plan.ranks[static_cast<std::size_t>(r)].lanes[static_cast<std::size_t>(polls)];
    lane.submission.prelaunched = true;
    hand.notify(r, 0, go, r).await(r, polls, go);
  }
  expect_wrong(hand, "context", {"rank 0: lane engine is prelaunched"}, Setting::context);
}

}  // namespace
}  // namespace shingle::verify_context_test
