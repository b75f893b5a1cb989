// Plans by hand with and without races: what an await orders, epochs, remote memory, copy engines (DESIGN §4,
// rules 5 to 7).
#include "support/expect_proof.hpp"

namespace shingle::verify_order_test {
namespace {

using namespace test;

// ------------------------------------------------------------------------------------------------- within a
// step

TEST(VerifyOrder, TilesOfAStepAreUnordered) {
  // Four tiles of two rows, all stored in the same two.
  const RowMap all_to_one{4, 2, 2, 0, 0, 8};
  Hand hand(small(Op::gemm, 1));
  const auto product = hand.buffer("product", 8, 8);
  Gemm gemm = hand.gemm(0, hand.all(product, 0), 0, 2);
  gemm.out.form = placement::Matrix{all_to_one};
  hand.step(0, 0, gemm).step(0, 0, hand.gemm(0, hand.all(hand.out, 0)));
  expect_wrong(
      hand, "race",
      {"rank 0, lane compute, step 0 (gemm), tile (1, 0)", "tile (0, 0)", "product on rank 0, rows [0, 2)"});
}

TEST(VerifyOrder, ATileStoresItsRowsOnce) {
  Hand hand(small(Op::gemm, 1));
  Gemm gemm = hand.gemm(0, hand.all(hand.out, 0));
  gemm.out.form = placement::Matrix{{2, 4, 4, 0, 0, 8}};  // one tile, whose two halves go to the same rows
  hand.step(0, 0, gemm);
  expect_wrong(
      hand, "race",
      {"rank 0, lane compute, step 0 (gemm), tile (0, 0)", "stores out on rank 0, rows [0, 4)", "twice"});
}

TEST(VerifyOrder, AGemmReadsItsOperandsToTheEnd) {
  // K = N, so that the product may be stored over a copy of B. Column by column, other tiles still need B.
  Problem p = small(Op::gemm, 1);
  p.k = 8;
  Hand hand(p);
  const auto copy = hand.buffer("copy", 8, 8);
  Gemm gemm = hand.gemm(0, hand.all(copy, 0));
  gemm.b = hand.all(copy, 0);
  hand.step(0, 0, Copy{hand.all(hand.b, 0), hand.all(copy, 0)}).step(0, 0, gemm);
  hand.step(0, 0, Hand::pass({hand.all(copy, 0)}, hand.all(hand.out, 0)));
  expect_wrong(hand, "race", {"rank 0, lane compute, step 1 (gemm)", "copy on rank 0"});
}

TEST(VerifyOrder, APassMayWorkInPlaceButNotPermute) {
  for (const bool reversed : {false, true}) {
    Problem p = small(Op::gemm, 1);
    Hand hand(p);
    Elementwise pass = Hand::pass({hand.all(hand.out, 0)}, hand.all(hand.out, 0), 4);
    if (reversed) {  // rows 0 1 2 3 stay: not a permutation …
      pass.to.form = placement::Matrix{{2, 2, 2, 2, 0, 4}};
      pass.grid.rows = 4;
    }
    Gemm gemm = hand.gemm(0, hand.all(hand.out, 0));
    hand.step(0, 0, gemm).step(0, 0, pass);
    expect_proven(hand);
  }
  // … but these are one: the tile's rows 0 1 | 2 3 to 0 2 | 1 3. Row by row, row 1 is stored before it is
  // read.
  Hand hand(small(Op::gemm, 1));
  Elementwise swap = Hand::pass({hand.all(hand.out, 0)}, hand.all(hand.out, 0));
  swap.from[0].form = placement::Matrix{{4, 1, 2, 2, 0, 8}};
  Gemm gemm = hand.gemm(0, hand.all(hand.out, 0));
  gemm.out.form = swap.from[0].form;
  hand.step(0, 0, gemm).step(0, 0, swap);
  expect_wrong(hand, "race", {"rank 0, lane compute, step 1 (permute), item 0", "may overwrite rows of out"});
}

// ---------------------------------------------------------------------------------------------- awaits (rule
// 5)

/// Two lanes that each compute half of a product and count it, and the first lane, which waits and stores the
/// output.
struct Writers : Hand {
  std::int32_t product = buffer("product", 8, 8), done = counter("done"),
               writers[2] = {lane("low"), lane("high")};

  Writers() : Hand(small(Op::gemm, 1)) {
    for (int half = 0; half < 2; ++half)
      step(0, writers[half], gemm(0, rows(product, 0, 4 * half, 4), 4 * half))
          .notify(0, writers[half], done, 0);
  }
  Hand reading(std::uint32_t target) {
    return await(0, 0, done, target).step(0, 0, pass({all(product, 0)}, all(out, 0)));
  }
};

TEST(VerifyOrder, AnAwaitForAllKnowsAll) {
  expect_proven(Writers().reading(2));
}

TEST(VerifyOrder, AnAwaitForOneOfTwoKnowsNeither) {
  expect_wrong(Writers().reading(1), "race",
               {"rank 0, lane compute, step 1 (permute), item 0", "product on rank 0, rows ["});
}

/// One lane that raises a count half by half.
Hand progressive(std::uint32_t target, std::int64_t row, CounterKind kind) {
  Hand hand(small(Op::gemm, 1));
  const auto product = hand.buffer("product", 8, 8), done = hand.counter("done", 1, kind),
             writer = hand.lane("writer");
  for (int half = 0; half < 2; ++half)
    hand.step(0, writer, hand.gemm(0, hand.rows(product, 0, 4 * half, 4), 4 * half))
        .notify(0, writer, done, 0, 0, kind == CounterKind::set ? static_cast<std::uint32_t>(half) + 1 : 1);
  hand.await(0, 0, done, target)
      .step(0, 0, Hand::pass({hand.rows(product, 0, row, 4)}, hand.rows(hand.out, 0, row, 4)));
  hand.await(0, 0, done, 2)
      .step(0, 0, Hand::pass({hand.rows(product, 0, 4 - row, 4)}, hand.rows(hand.out, 0, 4 - row, 4)));
  return hand;
}

TEST(VerifyOrder, ProgressiveThresholdsOfOneWriter) {
  for (const CounterKind kind : {CounterKind::add, CounterKind::set}) {
    expect_proven(progressive(1, 0, kind));
    expect_proven(progressive(2, 4, kind));
    expect_wrong(progressive(1, 4, kind), "race",
                 {"rank 0, lane compute, step 1 (permute), item 0", "product on rank 0, rows [4, 8)",
                  "rank 0, lane writer, step 2 (gemm)"});
  }
}

TEST(VerifyOrder, AnAwaitMayBeReachedByALaterEpochOfAFastRank) {
  // Rank 0 awaits its own lane and its peer. The peer need not wait: its next epoch may stand in for the own
  // lane's add.
  for (const bool bounded : {false, true}) {
    Hand hand(small(Op::gemm));
    const auto product = hand.buffer("product", 8, 8), ready = hand.counter("ready"),
               passed = hand.counter("passed");
    const auto writer = hand.lane("writer");
    hand.step(0, writer, hand.gemm(0, hand.all(product, 0))).notify(0, writer, ready, 0);
    hand.await(0, 0, ready, 2).step(0, 0, Hand::pass({hand.all(product, 0)}, hand.all(hand.out, 0)));
    hand.step(1, 0, hand.gemm(1, hand.all(hand.out, 1))).notify(1, 0, ready, 0);
    if (bounded) {
      hand.notify(0, 0, passed, 1).await(1, 0, passed);
      expect_proven(hand);
    } else {
      expect_wrong(hand, "race",
                   {"rank 0, lane compute, step 1 (permute)", "rank 0, lane writer, step 0 (gemm)",
                    "product on rank 0"});
    }
  }
}

TEST(VerifyOrder, ARankThatNeverWaitsIsAnyNumberOfEpochsAhead) {
  // However much rank 1 adds in one epoch, many epochs of rank 0 alone amount to it.
  for (const std::uint32_t amount : {1u, 2u, 3u, 9u, 100u}) {
    Hand hand(small(Op::gemm, 3));
    const auto product = hand.buffer("product", 8, 8), copy = hand.buffer("copy", 8, 8),
               ready = hand.counter("ready"), taken = hand.counter("taken");
    hand.step(1, 0, hand.gemm(1, hand.all(product, 1))).notify(1, 0, ready, 2, 0, amount);
    hand.step(1, 0, hand.gemm(1, hand.all(hand.out, 1)));
    hand.step(0, 0, hand.gemm(0, hand.all(hand.out, 0))).notify(0, 0, ready, 2);
    hand.await(2, 0, ready, amount + 1).step(2, 0, Copy{hand.all(product, 1), hand.all(copy, 2)});
    hand.step(2, 0, hand.gemm(2, hand.all(hand.out, 2)));
    hand.notify(2, 0, taken, 1).await(1, 0, taken);  // so that nothing but the runaway is wrong
    expect_wrong(hand, "race", {"product on rank 1"});
  }
}

// ---------------------------------------------------------------------------------------------- epochs (rule
// 6)

enum class Bound { none, at_the_end, before_storing };

/// Each rank reads its peer's product and sums it with its own.
Hand pull(std::int32_t depth, Bound bound, bool awaits = true) {
  Hand hand(small(Op::gemm_allreduce));
  const auto product = hand.buffer("product", 8, 8, depth), incoming = hand.buffer("incoming", 8, 8);
  const auto ready = hand.counter("ready"), arrived = hand.counter("arrived"), taken = hand.counter("taken");
  const auto engine = hand.lane("engine", LaneKind::copy);
  for (int r = 0; r < 2; ++r) {
    const int peer = 1 - r;
    if (bound == Bound::before_storing)
      hand.await(r, 0, taken, 0);  // all of the last epoch, nothing of this one
    hand.step(r, 0, hand.gemm(r, hand.all(product, r))).notify(r, 0, ready, peer);
    if (awaits) hand.await(r, engine, ready);
    hand.step(r, engine, Copy{hand.all(product, peer), hand.all(incoming, r)}).notify(r, engine, arrived, r);
    if (bound != Bound::none) hand.notify(r, engine, taken, peer);
    const Slice own = hand.all(product, r), other = hand.all(incoming, r);
    hand.await(r, 0, arrived)
        .step(r, 0, Hand::pass({r == 0 ? own : other, r == 0 ? other : own}, hand.all(hand.out, r)));
    if (bound == Bound::at_the_end) hand.await(r, 0, taken);
  }
  return hand;
}

TEST(VerifyEpochs, AFastRankOverwritesWhatItsPeerStillReads) {
  expect_wrong(
      pull(1, Bound::none), "race",
      {"product on rank", "(copy) of epoch 0", "lane compute, step 0 (gemm), tile (0, 0) of epoch 1"});
}

TEST(VerifyEpochs, TwoCopiesBoundItByOneEpoch) {
  expect_proven(pull(2, Bound::none));
}

TEST(VerifyEpochs, SoDoesAnAcknowledgement) {
  expect_proven(pull(1, Bound::at_the_end));
  expect_proven(pull(1, Bound::before_storing));
}

TEST(VerifyEpochs, ARemoteReadAwaitsItsPeer) {
  expect_wrong(pull(2, Bound::at_the_end, false), "race",
               {"lane engine, step 0 (copy)", "product on rank", "rows [0, 8)"});
}

/// Rank 0 pushes its product into rank 1's memory, which copies it to its output.
Hand push(std::int32_t depth, bool acknowledged) {
  Hand hand(small(Op::gemm));
  const auto inbox = hand.buffer("inbox", 8, 8, depth), arrived = hand.counter("arrived"),
             taken = hand.counter("taken");
  Gemm gemm = hand.gemm(0, hand.all(inbox, 1));
  if (acknowledged) hand.await(0, 0, taken, 0);
  hand.step(0, 0, gemm).notify(0, 0, arrived, 1).step(0, 0, hand.gemm(0, hand.all(hand.out, 0)));
  hand.step(1, 0, hand.gemm(1, hand.all(hand.out, 1))).await(1, 0, arrived);
  hand.step(1, 0, Hand::pass({hand.all(inbox, 1)}, hand.all(hand.buffer("copy", 8, 8), 1)));
  if (acknowledged) hand.notify(1, 0, taken, 0);
  return hand;
}

TEST(VerifyEpochs, ARemoteStoreAwaitsThatTheLastOneWasRead) {
  expect_wrong(push(1, false), "race",
               {"rank 0, lane compute, step 0 (gemm)", "inbox on rank 1", "rank 1, lane compute, step 2"});
  // Without any bound, no number of copies is enough: rank 0 may be any number of epochs ahead.
  expect_wrong(push(2, false), "race", {"inbox on rank 1"});
  expect_proven(push(1, true));
}

/// Rank 1 multiplies with a copy of rank 0's A, which the user overwrites between epochs.
Hand borrow(bool begins, bool ends) {
  Hand hand(small(Op::gemm));
  const auto copy = hand.buffer("copy", 8, 4), open = hand.counter("open"), taken = hand.counter("taken");
  hand.step(0, 0, hand.gemm(0, hand.all(hand.out, 0)));
  if (begins) hand.notify(0, 0, open, 1).await(1, 0, open);
  hand.step(1, 0, Copy{hand.all(hand.a, 0), hand.all(copy, 1)})
      .step(1, 0, hand.gemm(1, hand.all(hand.out, 1)));
  if (ends) hand.notify(1, 0, taken, 0).await(0, 0, taken);
  return hand;
}

TEST(VerifyEpochs, TheUsersMemoryIsOpenWhileItsRankIsInTheEpoch) {
  expect_proven(borrow(true, true));
  expect_wrong(borrow(false, true), "race",
               {"rank 1, lane compute, step 0 (copy)", "a on rank 0", "the user of rank 0"});
  expect_wrong(borrow(true, false), "race",
               {"the user of rank 0", "a on rank 0, rows [0, 8) columns [0, 4)",
                "rank 1, lane compute, step 1 (copy)"});
}

TEST(VerifyEpochs, ARankWithoutLanesHasAnOutputToo) {
  Hand hand(small(Op::gemm));
  hand.step(0, 0, hand.gemm(0, hand.all(hand.out, 0)));
  hand.plan.ranks[1].lanes.clear();
  expect_wrong(hand, "content", {"out on rank 1, rows [0, 8)", "holds nothing"});
}

// ------------------------------------------------------------------------------------------------- counters
// (rule 6)

/// A lane that signals with a counter of its own kind, and one that waits for it.
Hand signalled(CounterKind kind, std::vector<std::uint32_t> values, std::uint32_t target) {
  Hand hand(small(Op::gemm, 1));
  const auto flag = hand.counter("flag", 1, kind), other = hand.lane("other");
  for (const std::uint32_t value : values) hand.notify(0, other, flag, 0, 0, value);
  return hand.await(0, 0, flag, target).step(0, 0, hand.gemm(0, hand.all(hand.out, 0)));
}

TEST(VerifyCounters, SetAndAdd) {
  expect_proven(signalled(CounterKind::add, {2, 1}, 3));
  expect_proven(signalled(CounterKind::set, {2, 3}, 3));
  expect_proven(signalled(CounterKind::set, {2, 2}, 2));
}

TEST(VerifyCounters, ASetCounterOnlyGrows) {
  // A copy engine stores the value as it is: whoever looks late sees the lower one.
  expect_wrong(signalled(CounterKind::set, {2, 1}, 2), "counters",
               {"flag[0] on rank 0 is set back by rank 0, lane other, step 1 (notify), from 2 to 1"});
}

TEST(VerifyCounters, ASetCounterHasOneWriter) {
  Hand hand = signalled(CounterKind::set, {1}, 1);
  hand.notify(0, 0, 0, 0, 0, 2);
  expect_wrong(
      hand, "counters",
      {"flag[0] on rank 0", "lane compute, step 2 (notify)", "lane other, step 0 (notify)", "one writer"});
}

TEST(VerifyCounters, GrowthIsWhatTheStepsDo) {
  Hand hand = signalled(CounterKind::add, {2}, 1);
  hand.count();
  hand.plan.counters[0].growth = {{1}};
  expect_wrong(hand.plan, "counters",
               {"flag[0] on rank 0 declares a growth of 1 an epoch, but its steps add 2"});
}

TEST(VerifyCounters, ATargetIsOfItsOwnEpoch) {
  Hand hand = signalled(CounterKind::add, {2}, 2);
  std::get<Await>(hand.plan.ranks[0].lanes[0].steps[0]).target = 3;  // reached, if at all, by the next epoch
  expect_wrong(hand, "progress",
               {"rank 0, lane compute, step 0 (await) waits for flag[0] on rank 0: 2 of 3"});
  Hand peer(small(Op::gemm));
  const auto flag = peer.counter("flag");
  for (int r = 0; r < 2; ++r) peer.step(r, 0, peer.gemm(r, peer.all(peer.out, r)));
  peer.notify(1, 0, flag, 0).await(0, 0, flag, 2);  // by the peer's next epoch, it is
  expect_wrong(peer, "progress", {"flag[0] on rank 0"});
}

// ------------------------------------------------------------------------------------------------- order of
// rendezvous

TEST(VerifyOrder, WhoLeavesACollectiveKnowsWhatItsSendersDid) {
  // Rank 0 stores into rank 1's memory, then both meet. Libraries do not make anybody wait for a rank that
  // sends it nothing.
  const auto made = [](CollectiveKind kind, std::int64_t rows) {
    Hand hand(small(Op::gemm));
    const auto inbox = hand.buffer("inbox", 8, 8, 1), x = hand.buffer("x", 8, 8), y = hand.buffer("y", 16, 8);
    for (int r = 0; r < 2; ++r) hand.step(r, 0, hand.gemm(r, hand.all(hand.out, r)));
    hand.step(0, 0, hand.gemm(0, hand.all(inbox, 1)));
    for (int r = 0; r < 2; ++r) {
      const std::int64_t received = kind == CollectiveKind::allgather       ? 2 * rows
                                    : kind == CollectiveKind::reducescatter ? rows / 2
                                                                            : rows;
      Collective meet = Hand::collective(kind, hand.rows(x, r, 0, rows), hand.rows(y, r, 0, received));
      if (kind == CollectiveKind::alltoall)
        meet.send_rows = {r == 0 ? rows : 0, r == 0 ? 0 : rows}, meet.recv_rows = meet.send_rows;
      hand.step(r, 0, meet);
    }
    hand.step(1, 0, Hand::pass({hand.all(inbox, 1)}, hand.all(x, 1)));
    // Whatever comes first, the next epoch begins after both have met again.
    for (int r = 0; r < 2; ++r)
      hand.step(r, 0,
                Hand::collective(CollectiveKind::allreduce, hand.rows(y, r, 0, 1), hand.rows(y, r, 0, 1)));
    return hand;
  };
  for (const CollectiveKind kind :
       {CollectiveKind::allreduce, CollectiveKind::reducescatter, CollectiveKind::allgather}) {
    expect_proven(made(kind, 4));
    expect_wrong(made(kind, 0), "race",
                 {"rank 1, lane compute, step 2", "inbox on rank 1", "rank 0, lane compute, step 1 (gemm)"});
  }
  // All-to-all in which each rank keeps what it has.
  expect_wrong(made(CollectiveKind::alltoall, 4), "race", {"inbox on rank 1"});
}

TEST(VerifyOrder, AnEmptyMessageOrdersNothing) {
  for (const std::int64_t rows : {0, 1}) {
    Hand hand(small(Op::gemm));
    const auto inbox = hand.buffer("inbox", 8, 8), x = hand.buffer("x", 1, 8);
    for (int r = 0; r < 2; ++r) hand.step(r, 0, hand.gemm(r, hand.all(hand.out, r)));
    hand.step(0, 0, hand.gemm(0, hand.all(inbox, 1)))
        .step(0, 0, Exchange{0, {{1, hand.rows(x, 0, 0, rows)}}, {}, {}});
    hand.step(1, 0, Exchange{0, {}, {{0, hand.rows(x, 1, 0, rows)}}, {}});
    hand.step(1, 0, Hand::pass({hand.all(inbox, 1)}, hand.all(hand.buffer("copy", 8, 8), 1)));
    // Back, so that rank 0 does not run ahead.
    hand.step(1, 0, Exchange{0, {{0, hand.all(x, 1)}}, {}, {}})
        .step(0, 0, Exchange{0, {}, {{1, hand.all(x, 0)}}, {}});
    if (rows > 0)
      expect_proven(hand);
    else
      expect_wrong(hand, "race", {"inbox on rank 1", "rank 1, lane compute, step 2"});
  }
}

// ---------------------------------------------------------------------------------------------- copy engines
// (rule 7)

/// The halves of the output, stored the wrong way round, then exchanged in place by a copy engine.
Hand swapped(bool awaits) {
  Hand hand(small(Op::gemm, 1));
  const auto done = hand.counter("done"), engine = hand.lane("engine", LaneKind::copy);
  for (int half = 0; half < 2; ++half)
    hand.step(0, 0, hand.gemm(0, hand.rows(hand.out, 0, 4 - 4 * half, 4), 4 * half));
  hand.notify(0, 0, done, 0);
  if (awaits) hand.await(0, engine, done);
  return hand.step(0, engine, Swap{hand.rows(hand.out, 0, 0, 4), hand.rows(hand.out, 0, 4, 4)});
}

TEST(VerifyCopyEngine, SwapReadsAndWritesBoth) {
  expect_proven(swapped(true));
  expect_wrong(swapped(false), "race",
               {"out on rank 0, rows [", "lane engine, step 0 (swap)", "lane compute, step"});
  Hand half = swapped(true);
  std::get<Swap>(half.plan.ranks[0].lanes[1].steps[1]).a.rows = 2;
  std::get<Swap>(half.plan.ranks[0].lanes[1].steps[1]).b.rows = 2;
  expect_wrong(half, "content", {"out on rank 0, rows [2, 4)", "row 2"});
}

TEST(VerifyCopyEngine, BroadcastWritesTwo) {
  // Rank 1 has no product of its own rows 0 to 4: its engine's broadcast brings them to it and to a scratch
  // copy.
  const auto made = [](bool awaits) {
    Hand hand(small(Op::gemm, 1));
    const auto first = hand.buffer("first", 8, 8), second = hand.buffer("second", 8, 8),
               done = hand.counter("done", 2);
    const auto engine = hand.lane("engine", LaneKind::copy);
    hand.step(0, 0, hand.gemm(0, hand.all(first, 0))).notify(0, 0, done, 0);
    if (awaits) hand.await(0, engine, done);
    hand.step(0, engine, Broadcast{hand.all(first, 0), {hand.all(second, 0), hand.all(hand.out, 0)}})
        .notify(0, engine, done, 0, 1);
    return hand.await(0, 0, done, 1, 1);
  };
  expect_proven(made(true));
  expect_wrong(made(false), "race", {"lane engine, step 0 (broadcast)", "first on rank 0"});
}

TEST(VerifyCopyEngine, CopiesOfTwoEnginesCollide) {
  for (const std::int64_t apart : {4, 3}) {
    Hand hand(small(Op::gemm, 1));
    const auto product = hand.buffer("product", 8, 8), ready = hand.counter("ready", 2),
               done = hand.counter("done");
    hand.step(0, 0, hand.gemm(0, hand.all(product, 0))).notify(0, 0, ready, 0, 0).notify(0, 0, ready, 0, 1);
    for (int e = 0; e < 2; ++e) {
      const auto engine = hand.lane(e == 0 ? "first" : "second", LaneKind::copy);
      const std::int64_t row = e * apart;
      hand.await(0, engine, ready, 1, e)
          .step(0, engine, Copy{hand.rows(product, 0, row, 8 - row), hand.rows(hand.out, 0, row, 8 - row)});
      hand.notify(0, engine, done, 0);
      std::get<Copy>(hand.plan.ranks[0].lanes[1].steps[1]).from.rows = 4;
      std::get<Copy>(hand.plan.ranks[0].lanes[1].steps[1]).to.rows = 4;
    }
    hand.await(0, 0, done, 2);
    if (apart == 4)
      expect_proven(hand);
    else
      expect_wrong(hand, "race",
                   {"out on rank 0, rows [3, 4)", "lane first, step 1 (copy)", "lane second, step 1 (copy)"});
  }
}

}  // namespace
}  // namespace shingle::verify_order_test
