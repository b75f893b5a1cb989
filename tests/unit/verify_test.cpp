// Plans by hand that do or do not finish: tiled steps, residency, rendezvous, one hardware queue (DESIGN §4,
// rules 1 to 4).
#include "support/expect_proof.hpp"
#include "verify/residency.hpp"

namespace shingle::verify_test {
namespace {

using namespace test;

// --------------------------------------------------------------------------------------------- tiled steps
// (rule 1)

/// One rank: a GEMM that counts its tiles in two groups, and a pass on another lane that follows it.
struct Follow : Hand {
  std::int32_t product = buffer("product", 8, 8), done = counter("done", 3), follower = lane("follower");
  Gemm producer = gemm(0, all(product, 0), 0, 2);
  Elementwise consumer = pass({all(product, 0)}, all(out, 0), 2);

  explicit Follow(std::int32_t workers = 2) : Hand(small(Op::gemm, 1), workers) {
    producer.notify = {{done, {0}, {2, 4}}};
    consumer.gates = {{done, {2, 4}, {2, 2}}};
    consumer.resources = {1, 1};
  }
  Hand made() { return step(0, 0, producer).step(0, follower, consumer); }
};

TEST(VerifyProgress, APassMayFollowAGemm) {
  expect_proven(Follow().made());
}

TEST(VerifyProgress, GroupsMayDifferAsLongAsTheyAreCovered) {
  Follow plan;
  plan.consumer.gates = {
      {plan.done, {1, 4}, {2, 2}}};  // the first tile awaits the first group, the others the second …
  expect_wrong(plan.made(), "race",
               {"rank 0, lane follower, step 0 (permute), item 1", "product on rank 0, rows [2, 4)"});
  plan = Follow();
  plan.consumer.gates.push_back({plan.done, {0, 4}, {0, 2}});  // … but all of them may await both
  expect_proven(plan.made());
}

TEST(VerifyProgress, PhantomTilesAwaitNothing) {
  // Two tile rows at a time: the fourth position of three tiles is phantom. A group of it alone keeps nobody
  // waiting, so that the step after this one cannot rely on it.
  for (const bool phantom : {false, true}) {
    Follow plan;
    const auto late = plan.counter("late", 2), slow = plan.lane("slow"), copy = plan.buffer("copy", 8, 8);
    plan.consumer.grid = make_grid(phantom ? 6 : 8, 8, 2, 8, {Raster::along_n, 2});
    plan.consumer.gates = {{plan.done, {0, 4}, {0, 2}}, {late, {3, 4}, {0, 1}}};
    plan.producer.notify = {{plan.done, {0}, {0, 4}}};
    plan.consumer.gates[0].targets[1] = 4;
    plan.made();
    plan.step(0, slow, plan.gemm(0, plan.all(copy, 0))).notify(0, slow, late, 0, 1);
    plan.step(0, plan.follower, Hand::pass({plan.all(copy, 0)}, plan.all(plan.out, 0)));
    if (phantom)
      expect_wrong(plan, "race", {"rank 0, lane follower, step 1 (permute)", "copy on rank 0"});
    else
      expect_proven(plan);
  }
}

TEST(VerifyProgress, ATileThatAwaitsAHigherTileOfItsStep) {
  Follow plan;
  const std::int32_t self = plan.counter("self", 3);
  plan.consumer.notify = {{self, {0}, {2, 4}}};
  plan.consumer.gates.push_back(
      {self, {0, 4}, {0, 1}});  // all tiles await entry 1, which tiles 2 and 3 add to
  expect_wrong(plan.made(), "progress",
               {"rank 0, lane follower, step 0 (permute)", "self[1] on rank 0: 0 of 1"});
}

TEST(VerifyProgress, ATileThatAwaitsALowerTileOfItsStep) {
  Follow plan;
  const std::int32_t self = plan.counter("self", 3);
  plan.consumer.notify = {{self, {0}, {0, 1, 4}}};
  plan.consumer.gates.push_back({self, {1, 4}, {0, 1}});  // all but tile 0 await tile 0
  expect_proven(plan.made());
}

TEST(VerifyProgress, AwaitNobodyAnswers) {
  Follow plan;
  plan.producer.notify.clear();
  Hand hand = plan.made();
  hand.count();
  hand.plan.counters[0].growth = {{2, 2, 0}};
  expect_wrong(hand.plan, "progress", {"rank 0, lane follower", "waits for done[0] on rank 0: 0 of 2"});
}

TEST(VerifyProgress, AnAwaitBeforeItsOwnLanesNotify) {
  Hand hand(small(Op::gemm, 1));
  const auto ready = hand.counter("ready");
  hand.await(0, 0, ready).step(0, 0, hand.gemm(0, hand.all(hand.out, 0))).notify(0, 0, ready, 0);
  expect_wrong(hand, "progress", {"rank 0, lane compute, step 0 (await)", "ready[0]"});
}

// ------------------------------------------------------------------------------------------------ residency
// (rule 2)

TEST(VerifyResidency, AWaitingStepLeavesItsProducerAWorker) {
  expect_wrong(Follow(1).made(), "residency", {"rank 0, lane compute, step 0 (gemm)", "needs 1 workers"});
}

TEST(VerifyResidency, AStepThatTakesAllThatAreFreeLeavesNone) {
  Follow plan(100);
  plan.consumer.resources = {1, 0};
  expect_wrong(plan.made(), "residency", {"rank 0", "hold 100"});
}

TEST(VerifyResidency, LanesThatWaitTogether) {
  Follow plan(3);
  const std::int32_t other = plan.lane("other");
  Elementwise second = plan.consumer;
  second.to.slice = plan.all(plan.buffer("copy", 8, 8), 0);
  second.resources = {3, 3};
  plan.made();
  plan.step(0, other, second);
  expect_wrong(plan, "residency", {"rank 0", "hold up to 4 workers", "the plan has 3"});
  plan.plan.workers = 5;  // both, and one for the GEMM
  expect_proven(plan);
}

TEST(VerifyResidency, AStepWithoutWorkersStillNeedsOne) {
  Follow plan(1);
  plan.producer.resources = {0, 0};
  expect_wrong(plan.made(), "residency", {"rank 0, lane compute, step 0 (gemm)"});
}

TEST(VerifyResidency, CollectivesHoldWorkersWhileTheyWait) {
  Hand hand(small(Op::gemm_allreduce), 2);
  const auto computed = hand.counter("computed");
  const auto wire = hand.lane("wire");
  for (int r = 0; r < 2; ++r) {
    auto allreduce =
        Hand::collective(CollectiveKind::allreduce, hand.all(hand.out, r), hand.all(hand.out, r));
    allreduce.resources = {2, 2};
    hand.step(r, 0, hand.gemm(r, hand.all(hand.out, r)))
        .notify(r, 0, computed, r)
        .await(r, wire, computed)
        .step(r, wire, allreduce);
  }
  // In the next epoch a slow rank's GEMM finds the fast one's collective, which waits for it.
  expect_wrong(hand, "residency",
               {"rank 0, lane compute, step 0 (gemm)", "waiting steps of other lanes hold 2"});
  hand.plan.workers = 3;
  expect_proven(hand);
}

/// Two ranks of four workers: an all-reduce, and a pass that awaits its results in its kernel.
struct Awaited : Hand {
  Collective allreduce;
  Elementwise consumer;

  Awaited() : Hand(small(Op::gemm_allreduce)) { consumer.resources = {1, 4}; }
  Hand made() {
    const auto product = buffer("product", 8, 8), total = buffer("total", 8, 8);
    const auto computed = counter("computed"), arrived = counter("arrived", 2), wire = lane("wire");
    for (int r = 0; r < 2; ++r) {
      Collective call = collective(CollectiveKind::allreduce, all(product, r), all(total, r));
      call.resources = allreduce.resources;
      Elementwise following = pass({all(total, r)}, all(out, r), tile_rows);
      const std::int64_t tiles = 8 / tile_rows;
      following.resources = consumer.resources;
      following.gates = {{arrived, {tiles}, {1}}, {arrived, {tiles}, {1}, {1}}};
      following.gates.resize(gates);
      step(r, 0, gemm(r, all(product, r))).notify(r, 0, computed, r).step(r, 0, following);
      await(r, wire, computed).step(r, wire, call).notify(r, wire, arrived, r).notify(r, wire, arrived, r, 1);
    }
    return *this;
  }
  std::size_t gates = 2;
  std::int64_t tile_rows = 2;
};

/// Threads that are no workers may run such a call, so the proof passes. NCCL would find no SM.
TEST(VerifyResidency, ACallThatReservesNoWorkerMayStarve) {
  const Hand starved = Awaited().made();
  expect_proven(starved);
  EXPECT_THAT(
      starved_call(starved.plan).value_or(""),
      testing::HasSubstr("rank 0, lane wire, step 1 (allreduce) reserves no worker, while gated steps of "
                         "other lanes may hold all 4"));
  Awaited reserving;
  reserving.allreduce.resources = {1, 0};
  EXPECT_EQ(starved_call(reserving.made().plan), std::nullopt);
  reserving = Awaited();
  reserving.allreduce.resources = {1, 1};
  expect_wrong(reserving.made(), "residency", {"rank 0", "hold up to 5 workers", "the plan has 4"});
  Awaited leaving;
  leaving.consumer.resources = {1, 3};
  EXPECT_EQ(starved_call(leaving.made().plan), std::nullopt);
  Awaited small;  // fewer tiles than workers
  small.tile_rows = 4;
  EXPECT_EQ(starved_call(small.made().plan), std::nullopt);
  Awaited waiting;  // in its stream, before its kernel
  waiting.gates = 1;
  EXPECT_EQ(starved_call(waiting.made().plan), std::nullopt);
}

// ----------------------------------------------------------------------------------------------- rendezvous
// (rule 3)

/// gemm+allreduce in two halves of the rows. The halves may go over different lanes and communicators.
struct Halves : Hand {
  std::int32_t computed = counter("computed", 2), wires[2] = {lane("wire"), -1}, communicators[2] = {0, 0};

  explicit Halves(int world = 2) : Hand(small(Op::gemm_allreduce, world)) { wires[1] = wires[0]; }
  void two_lanes() { wires[1] = lane("other wire"); }
  void two_communicators() {
    plan.communicators.push_back({"second", plan.communicators[0].ranks});
    communicators[1] = 1;
  }
  void compute(int rank) {
    for (int half = 0; half < 2; ++half)
      step(rank, 0, gemm(rank, rows(out, rank, 4 * half, 4), 4 * half)).notify(rank, 0, computed, rank, half);
  }
  void send(int rank, int half) {
    const Slice slice = rows(out, rank, 4 * half, 4);
    await(rank, wires[half], computed, 1, half);
    step(rank, wires[half], collective(CollectiveKind::allreduce, slice, slice, communicators[half]));
  }
  void rank(int rank, int first = 0) {
    compute(rank);
    send(rank, first);
    send(rank, 1 - first);
  }
};

TEST(VerifyRendezvous, OneLaneOneCommunicator) {
  Halves plan;
  plan.rank(0);
  plan.rank(1);
  expect_proven(plan);
}

TEST(VerifyRendezvous, TwoLanesOfOneCommunicator) {
  Halves plan;
  plan.two_lanes();
  plan.rank(0);
  plan.rank(1);
  expect_wrong(plan, "collectives", {"rank 0: lanes wire and other wire both use communicator world"});
}

TEST(VerifyRendezvous, TwoCommunicatorsNeedOneOrder) {
  Halves plan;
  plan.two_lanes();
  plan.two_communicators();
  plan.rank(0);
  plan.rank(1);
  expect_proven(plan);
  Halves crossed;
  crossed.two_lanes();
  crossed.two_communicators();
  crossed.rank(0);
  crossed.rank(1, 1);
  expect_wrong(crossed, "collectives", {"ranks disagree on the order", "rank ", "(allreduce)"});
}

TEST(VerifyRendezvous, TwoCommunicatorsOfOneLaneInDifferentOrders) {
  Halves plan;
  plan.two_communicators();
  plan.rank(0);
  plan.rank(1, 1);
  expect_wrong(plan, "progress",
               {"rank 0, lane wire", "waits for rank 1", "rank 1, lane wire", "waits for rank 0"});
}

TEST(VerifyRendezvous, CallsThatMeetHaveToFit) {
  Halves plan;
  plan.rank(0);
  plan.rank(1);
  std::get<Collective>(plan.plan.ranks[1].lanes[1].steps[3]).send.rows = 3;
  std::get<Collective>(plan.plan.ranks[1].lanes[1].steps[3]).recv.rows = 3;
  expect_wrong(
      plan, "collectives",
      {"communicator world", "rank 0, lane wire, step 3", "rank 1, lane wire, step 3", "but they differ"});
}

TEST(VerifyRendezvous, SwappedCallsOfEqualSizeMixUpRows) {
  Halves plan;
  plan.rank(0);
  plan.rank(1, 1);
  expect_wrong(plan, "content", {"rank 1, lane wire, step 1 (allreduce)", "rows [0, 4)"});
}

TEST(VerifyRendezvous, ARankThatCallsLess) {
  Halves plan;
  plan.rank(0);
  plan.compute(1);
  plan.send(1, 0);
  expect_wrong(plan, "progress", {"rank 0, lane wire, step 3 (allreduce) waits for rank 1 in epoch 1"});
}

TEST(VerifyRendezvous, AlltoallCountsHaveToAgree) {
  Problem p = small(Op::gemm_alltoall);
  p.routing = std::make_shared<const Routing>(
      std::vector<std::vector<std::int32_t>>{{0, 0, 0, 1, 1, 1, 1, 1}, {0, 1, 1, 1, 1, 1, 1, 1}});
  const auto made = [&](std::vector<std::int64_t> sent_by_1) {
    Hand hand(p);
    const auto product = hand.buffer("product", 8, 8);
    const std::vector<std::int64_t> sent[2] = {{3, 5}, std::move(sent_by_1)};
    for (int r = 0; r < 2; ++r) {
      Collective exchange =
          Hand::collective(CollectiveKind::alltoall, hand.all(product, r), hand.all(hand.out, r));
      exchange.send_rows = sent[r];
      exchange.recv_rows = r == 0 ? std::vector<std::int64_t>{3, 1} : std::vector<std::int64_t>{5, 7};
      hand.step(r, 0, hand.gemm(r, hand.all(product, r))).step(r, 0, exchange);
    }
    return hand;
  };
  expect_proven(made({1, 7}));
  expect_wrong(made({7, 1}), "collectives", {"rank 1, lane compute, step 1 (alltoall)", "but they differ"});
}

// ---------------------------------------------------------------------------------------------- exchanges
// (rule 3)

/// Every rank's product travels to the next rank of a ring.
struct Ring : Hand {
  std::int32_t product = buffer("product", 8, 8), got = buffer("got", 8, 8);

  explicit Ring(int world = 3) : Hand(small(Op::gemm, world)) {
    for (int r = 0; r < world; ++r)
      step(r, 0, gemm(r, all(product, r))).step(r, 0, pass({all(product, r)}, all(out, r)));
  }
  Exchange::Message to_next(int r) const { return {(r + 1) % world(), all(product, r)}; }
  Exchange::Message of_last(int r) const { return {(r + world() - 1) % world(), all(got, r)}; }
  Exchange& exchange_of(int r) {
    return std::get<Exchange>(plan.ranks[static_cast<std::size_t>(r)].lanes[0].steps[2]);
  }
  Hand made() {
    for (int r = 0; r < world(); ++r) step(r, 0, Exchange{0, {to_next(r)}, {of_last(r)}, {}});
    return *this;
  }
};

TEST(VerifyExchange, ARingInOneStep) {
  expect_proven(Ring().made());
}

TEST(VerifyExchange, ARingThatReceivesBeforeItSends) {
  Ring ring;
  for (int r = 0; r < 3; ++r)
    ring.step(r, 0, Exchange{0, {}, {ring.of_last(r)}, {}})
        .step(r, 0, Exchange{0, {ring.to_next(r)}, {}, {}});
  expect_wrong(
      ring, "progress",
      {"rank 0, lane compute, step 2 (exchange) waits for the counterparts of its messages", "rank 2"});
}

TEST(VerifyExchange, ARingWithOneRankThatSendsFirst) {
  Ring ring;
  for (int r = 0; r < 3; ++r) {
    const Exchange receive{0, {}, {ring.of_last(r)}, {}}, send{0, {ring.to_next(r)}, {}, {}};
    ring.step(r, 0, r == 0 ? send : receive).step(r, 0, r == 0 ? receive : send);
  }
  expect_proven(ring);
}

TEST(VerifyExchange, MessagesThatDoNotFit) {
  Ring ring;
  ring.made();
  ring.exchange_of(1).receives[0].slice.rows = 7;
  expect_wrong(ring, "collectives",
               {"rank 0, lane compute, step 2 (exchange) sends 8x8 f32 to rank 1, which expects 7x8 f32"});
  Ring other_type;
  other_type.made();
  other_type.plan.problem().dtype = DType::bf16;
  for (Buffer& buffer : other_type.plan.buffers) buffer.dtype = DType::bf16;
  other_type.plan.buffers[static_cast<std::size_t>(other_type.got)].dtype = DType::f32;
  expect_wrong(other_type, "collectives", {"sends 8x8 bf16", "expects 8x8 f32"});
}

TEST(VerifyExchange, MessagesOfOneExchangeAreUnordered) {
  Ring twice;  // both messages of the neighbour into one place
  twice.made();
  for (int r = 0; r < 3; ++r) {
    twice.exchange_of(r).sends.push_back(twice.to_next(r));
    twice.exchange_of(r).receives.push_back(twice.of_last(r));
  }
  expect_wrong(twice, "race", {"(exchange)", "got on rank", "rows [0, 8)"});
  Ring in_place;  // out and in at the same time
  in_place.made();
  for (int r = 0; r < 3; ++r) in_place.exchange_of(r).receives[0].slice = in_place.all(in_place.product, r);
  expect_wrong(in_place, "race", {"(exchange)", "product on rank"});
}

TEST(VerifyExchange, ACommunicatorHasOneLane) {
  // Which of two lanes' messages meets the peer's first would be chance.
  Ring ring;
  const std::int32_t other = ring.lane("other");
  ring.made();
  for (int r = 0; r < 3; ++r) ring.step(r, other, Exchange{0, {ring.to_next(r)}, {ring.of_last(r)}, {}});
  expect_wrong(ring, "collectives", {"rank 0: lanes compute and other both use communicator world"});
}

// ----------------------------------------------------------------------------------------- one hardware
// queue (rule 4)

TEST(VerifyHardwareQueue, AnAwaitIssuedBeforeItsProducer) {
  Hand hand(small(Op::gemm_allreduce));
  const auto computed = hand.counter("computed");
  const auto wire = hand.lane("wire");
  for (int r = 0; r < 2; ++r) {
    const auto allreduce =
        Hand::collective(CollectiveKind::allreduce, hand.all(hand.out, r), hand.all(hand.out, r));
    hand.step(r, 0, hand.gemm(r, hand.all(hand.out, r)))
        .notify(r, 0, computed, r)
        .await(r, wire, computed)
        .step(r, wire, allreduce);
  }
  expect_proven(hand);
  hand.plan.ranks[1].issue = {1, 0, 0, 1};
  expect_wrong(hand, "hardware queue",
               {"rank 1, lane compute, step 0 (gemm) waits in the hardware queue behind rank 1, lane wire, "
                "step 0 (await)",
                "computed[0] on rank 1: 0 of 1"});
}

TEST(VerifyHardwareQueue, AwaitsOfTwoRanksThatHoldEachOthersNotify) {
  // Each rank notifies the other on one lane and awaits on another: the order of issue decides.
  const auto made = [](std::vector<std::int32_t> issue) {
    Hand hand(small(Op::gemm));
    const auto here = hand.counter("here");
    const auto other = hand.lane("other");
    for (int r = 0; r < 2; ++r) {
      hand.step(r, 0, hand.gemm(r, hand.all(hand.out, r))).notify(r, 0, here, 1 - r).await(r, other, here);
      hand.plan.ranks[static_cast<std::size_t>(r)].issue = issue;
    }
    return hand;
  };
  expect_proven(made({0, 0, 1}));
  expect_wrong(made({1, 0, 0}), "hardware queue", {"rank 0", "rank 1", "here[0]"});
}

/// A GEMM, a collective of what it computes, and a pass behind a gate that the collective opens.
struct Gated : Hand {
  std::int32_t product = buffer("product", 8, 8), computed = counter("computed"),
               received = counter("received", 2);
  std::int32_t wire = lane("wire");

  /// `groups`: a pass that follows them, with a wait in its stream; else one whose kernel waits itself.
  explicit Gated(bool groups) : Hand(small(Op::gemm_allreduce)) {
    for (int r = 0; r < 2; ++r) {
      Elementwise pass = Hand::pass({all(product, r)}, all(out, r), 4);
      pass.gates.push_back({received, {1, 2}, {1, 1}, {}});
      if (!groups) pass.gates.push_back(pass.gates[0]);
      pass.resources = {1, 1};
      step(r, 0, gemm(r, all(product, r))).notify(r, 0, computed, r).step(r, 0, pass);
      await(r, wire, computed)
          .step(r, wire, collective(CollectiveKind::allreduce, all(product, r), all(product, r)));
      notify(r, wire, received, r, 0).notify(r, wire, received, r, 1);
    }
  }
  Gated& issued(std::vector<std::int32_t> order) {
    for (RankPlan& rank : plan.ranks) rank.issue = order;
    return *this;
  }
};

TEST(VerifyHardwareQueue, APassThatFollowsItsGroupsWaitsInTheQueue) {
  Gated plan(true);
  expect_wrong(
      plan, "hardware queue",
      {"lane wire, step 0 (await) waits in the hardware queue behind rank 0, lane compute, step 2 (permute)",
       "received[0]"});
  expect_proven(plan.issued({0, 0, 1, 1, 1, 1, 0}));
  // Its last group's wait is in the queue, too.
  expect_wrong(plan.issued({0, 0, 1, 1, 1, 0, 1}), "hardware queue", {"received[1]"});
}

TEST(VerifyHardwareQueue, AKernelThatWaitsLetsOthersRunBesideIt) {
  expect_proven(Gated(false));
}

TEST(VerifyHardwareQueue, WhatIsBehindAWaitingKernelInItsLaneHoldsTheQueue) {
  Gated plan(false);
  const auto done = plan.counter("done");
  for (int r = 0; r < 2; ++r) plan.notify(r, 0, done, r);
  expect_proven(plan.issued({0, 0, 0, 1, 1, 1, 1, 0}));
  expect_wrong(
      plan.issued({0, 0, 0, 0, 1, 1, 1, 1}), "hardware queue",
      {"lane wire, step 0 (await) waits in the hardware queue behind rank 0, lane compute, step 3 (notify)"});
}

}  // namespace
}  // namespace shingle::verify_test
