// Passes that several lanes share: what they order, what they do not, and that they finish.
#include "support/expect_proof.hpp"

namespace shingle::verify_queue_test {
namespace {

using namespace test;

/// A product that two lanes move to the output, four rows an item, each item after its part of the GEMM.
struct Shared {
  Hand hand{small(Op::gemm, 1)};
  std::int32_t product = hand.buffer("product", 8, 8);
  std::int32_t computed = hand.counter("computed", 2);
  std::int32_t moved = hand.counter("moved");
  std::int32_t other = hand.lane("other", LaneKind::compute);

  Gemm gemm() const {
    Gemm gemm = hand.gemm(0, hand.all(product, 0), 0, 4);
    gemm.notify.push_back({computed, {0}, {1, 2}});
    gemm.resources = {1, 2};
    return gemm;
  }
  Elementwise pass(const std::vector<Slice>& from, const Slice& to) const {
    Elementwise pass = Hand::pass(from, to, 4);
    pass.queue = 0;
    pass.gates.push_back({computed, {1, 2}, {1, 1}});
    pass.notify.push_back({moved, {0}, {2}});
    pass.resources = {1, 2};
    return pass;
  }
  Elementwise pass() const { return pass({hand.all(product, 0)}, hand.all(hand.out, 0)); }
  void share(const Elementwise& pass) { hand.step(0, other, pass).step(0, 0, gemm()).step(0, 0, pass); }
};

TEST(VerifyQueue, EveryItemIsDoneOnce) {
  Shared plan;
  plan.share(plan.pass());
  expect_proven(plan.hand);
}

TEST(VerifyQueue, OneLaneAloneIsEnough) {
  Shared plan;
  plan.hand.step(0, 0, plan.gemm()).step(0, plan.other, plan.pass());
  expect_proven(plan.hand);
}

TEST(VerifyQueue, WithoutItsGateAnItemRaces) {
  // The lane that has computed the product would be late enough, but the other may come first.
  Shared plan;
  Elementwise pass = plan.pass();
  pass.gates.clear();
  plan.share(pass);
  expect_wrong(plan.hand, "race", {"product on rank 0"});
}

TEST(VerifyQueue, WhatFollowsKnowsNothingOfTheItems) {
  // The second pass of lane 0 reads what the other lane may still be storing.
  for (const bool awaits : {false, true}) {
    Shared plan;
    const auto middle = plan.hand.buffer("middle", 8, 8);
    plan.share(plan.pass({plan.hand.all(plan.product, 0)}, plan.hand.all(middle, 0)));
    if (awaits) plan.hand.await(0, 0, plan.moved, 2);
    plan.hand.step(0, 0, Hand::pass({plan.hand.all(middle, 0)}, plan.hand.all(plan.hand.out, 0)));
    if (awaits) {
      expect_proven(plan.hand);
    } else {
      expect_wrong(plan.hand, "race", {"middle on rank 0"});
    }
  }
}

TEST(VerifyQueue, SharedPassesAreTheSamePass) {
  Shared plan;
  Elementwise less = plan.pass();
  less.count = 1;
  plan.hand.step(0, plan.other, less).step(0, 0, plan.gemm()).step(0, 0, plan.pass());
  expect_wrong(plan.hand, "well-formed", {"queue", "does another pass"});
}

TEST(VerifyQueue, ALaneComesToAQueueOnce) {
  Shared plan;
  plan.hand.step(0, 0, plan.gemm()).step(0, 0, plan.pass()).step(0, 0, plan.pass());
  expect_wrong(plan.hand, "well-formed", {"queue", "twice"});
}

TEST(VerifyQueue, WaitingLanesHoldTheirWorkersTogether) {
  Shared plan;
  Elementwise pass = plan.pass();
  pass.resources = {1, 3};  // of four: two lanes that wait hold six
  plan.share(pass);
  expect_wrong(plan.hand, "residency", {"hold up to 6 workers", "the plan has 4"});
}

TEST(VerifyQueue, ItemsThatNobodyReleasesAreExplained) {
  Shared plan;
  Elementwise pass = plan.pass();
  pass.gates[0].targets[1] = 2;
  plan.share(pass);
  expect_wrong(plan.hand, "progress", {"computed[1] on rank 0", "1 of 2"});
}

}  // namespace
}  // namespace shingle::verify_queue_test
