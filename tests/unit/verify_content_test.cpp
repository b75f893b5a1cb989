// Plans by hand that finish without a race and compute the wrong product or sum, beside those that compute
// the right one (DESIGN §4, rule 8).
#include "support/expect_proof.hpp"

namespace shingle::verify_content_test {
namespace {

using namespace test;

// -------------------------------------------------------------------------------------------------------
// places

TEST(VerifyContent, RowsInTheirPlaces) {
  Problem p = small(Op::gemm, 1);
  expect_proven(Direct(p));
  Direct permuted(p);
  permuted.product().a_rows = {4, 1, 2, 2, 0, 8};
  expect_wrong(permuted, "content",
               {"out on rank 0, rows [1, 2) columns [0, 8)", "should be", "row 1", "but holds", "row 2"});
  Direct undone(p);  // the same permutation where the rows are stored
  undone.product().a_rows = {4, 1, 2, 2, 0, 8};
  undone.product().out.form = placement::Matrix{undone.product().a_rows};
  expect_proven(undone);
}

TEST(VerifyContent, ColumnsInTheirPlaces) {
  const auto halves = [](std::int64_t first) {
    Hand hand(small(Op::gemm, 1));
    for (const std::int64_t col : {0, 4}) {
      Slice to = hand.all(hand.out, 0), b = hand.all(hand.b, 0);
      to.col = col, to.cols = 4;
      b.col = col ^ first, b.cols = 4;
      Gemm gemm = hand.gemm(0, to);
      gemm.b = b;
      hand.step(0, 0, gemm);
    }
    return hand;
  };
  expect_proven(halves(0));
  expect_wrong(halves(4), "content", {"out on rank 0, rows [0, 8) columns [0, 4)", "column 0", "column 4"});
}

TEST(VerifyContent, MissingTilesAreSeen) {
  Direct plan(small(Op::gemm, 1));
  plan.product().grid.rows = 7;
  expect_wrong(plan, "content", {"out on rank 0, rows [7, 8)", "holds nothing"});
}

TEST(VerifyContent, AllOfK) {
  Direct half(small(Op::gemm, 1));
  half.product().a.cols = half.product().b.rows = 2;
  expect_wrong(half, "content", {"rank 0, lane compute, step 0 (gemm)", "2 of the K = 4"});
  Direct transposed([] {
    Problem p = small(Op::gemm, 1);
    p.transpose_a = p.transpose_b = true;
    return p;
  }());
  expect_proven(transposed);
  transposed.product().a.rows = transposed.product().b.cols = 3;
  transposed.product().a.row = transposed.product().b.col = 1;
  expect_wrong(transposed, "content", {"3 of the K = 4"});
}

TEST(VerifyContent, OperandsAsTheyAreStored) {
  // All square: shapes do not tell a matrix from its transpose.
  Problem p = small(Op::gemm, 1);
  p.k = 8;
  Direct a(p), b(p);
  a.product().transpose_a = true;
  b.product().transpose_b = true;
  expect_wrong(a, "content", {"rank 0, lane compute, step 0 (gemm)", "as its rows of A"});
  expect_wrong(b, "content", {"rank 0, lane compute, step 0 (gemm)", "as its columns of B"});
}

TEST(VerifyContent, OperandsOfOneRankAndThisEpoch) {
  Hand hand(small(Op::gemm_allreduce));
  // Rank 0's B travels to rank 1 by a broadcast of the library's kind: an allgather.
  const auto both = hand.buffer("both", 8, 8);
  for (int r = 0; r < 2; ++r) {
    hand.step(r, 0, Hand::collective(CollectiveKind::allgather, hand.all(hand.b, r), hand.all(both, r)));
    Gemm gemm = hand.gemm(r, hand.all(hand.out, r));
    gemm.b = hand.rows(both, r, 0, 4);  // rank 0's, on both
    hand.step(r, 0, gemm)
        .step(r, 0,
              Hand::collective(CollectiveKind::allreduce, hand.all(hand.out, r), hand.all(hand.out, r)));
  }
  expect_wrong(hand, "content", {"rank 1, lane compute, step 1 (gemm)", "A of one rank with B of another"});
}

TEST(VerifyContent, LastEpochsResultIsNotThisOnes) {
  Hand hand(small(Op::gemm, 1));
  const auto product = hand.buffer("product", 8, 8);
  hand.step(0, 0, Hand::pass({hand.all(product, 0)}, hand.all(hand.out, 0)))
      .step(0, 0, hand.gemm(0, hand.all(product, 0)));
  expect_wrong(hand, "content", {"out on rank 0", "holds nothing"});
  // It would show in the second epoch only, if the first one were computed: the copy holds the operands of
  // the epoch before.
  Hand late(small(Op::gemm, 1));
  const auto kept = late.buffer("kept", 4, 8);
  Gemm gemm = late.gemm(0, late.all(late.out, 0));
  gemm.b = late.all(kept, 0);
  late.step(0, 0, gemm).step(0, 0, Copy{late.all(late.b, 0), late.all(kept, 0)});
  expect_wrong(late, "content", {"step 0 (gemm)", "kept on rank 0"});
}

/// A product in rectangles of a row each, and a pass over it.
Hand rows_then_pass(std::int64_t rows_at_once) {
  Hand hand(small(Op::gemm, 1));
  const auto product = hand.buffer("product", 8, 8);
  hand.step(0, 0, hand.gemm(0, hand.all(product, 0), 0, 1))
      .step(0, 0, Hand::pass({hand.all(product, 0)}, hand.all(hand.out, 0), rows_at_once));
  return hand;
}

TEST(VerifyContent, WorkIsCountedByRectangle) {
  EXPECT_EQ(verify(rows_then_pass(8).plan).accesses, verify(rows_then_pass(1).plan).accesses);
}

TEST(VerifyContent, PhantomRowsMayBeStored) {
  // The map ends after 6 rows: what is stored for the other two is anything, and nobody may rely on the
  // place.
  for (const bool apart : {true, false}) {
    Hand hand(small(Op::gemm, 1));
    const auto staging = hand.buffer("staging", 16, 8);
    Gemm first = hand.gemm(0, hand.rows(staging, 0, 0, 8)),
         second = hand.gemm(0, hand.rows(staging, 0, 8, 2), 6);
    first.a_rows.limit = 6;
    const std::int64_t from = apart ? 8 : 6;
    second.out = Hand::in(hand.rows(staging, 0, from, 2));
    hand.step(0, 0, second).step(0, 0, first);
    hand.step(0, 0, Hand::pass({hand.rows(staging, 0, 0, 6)}, hand.rows(hand.out, 0, 0, 6)));
    hand.step(0, 0, Hand::pass({hand.rows(staging, 0, from, 2)}, hand.rows(hand.out, 0, 6, 2)));
    if (apart)
      expect_proven(hand);
    else
      expect_wrong(hand, "content", {"out on rank 0, rows [6, 8)", "holds nothing"});
  }
}

// ------------------------------------------------------------------------------------------------
// contributions

enum class Reduced { once, twice, by_one_only, with_itself };

/// gemm+allreduce; what happens after the products is the test's.
Hand reduced(Reduced how) {
  Hand hand(small(Op::gemm_allreduce));
  const auto product = hand.buffer("product", 8, 8);
  for (int r = 0; r < 2; ++r) {
    const Slice own = hand.all(product, r), out = hand.all(hand.out, r);
    const Collective sum = Hand::collective(CollectiveKind::allreduce, own, out);
    hand.step(r, 0, hand.gemm(r, own));
    if (how == Reduced::by_one_only) hand.step(r, 0, Hand::pass({own}, out));
    if (how == Reduced::with_itself) hand.step(r, 0, Hand::pass({own, own}, out));
    if (how == Reduced::once || how == Reduced::twice) hand.step(r, 0, sum);
    if (how == Reduced::twice) hand.step(r, 0, Hand::collective(CollectiveKind::allreduce, out, out));
  }
  return hand;
}

TEST(VerifyContent, EachContributionOnce) {
  expect_proven(reduced(Reduced::once));
  expect_wrong(reduced(Reduced::twice), "content", {"(allreduce)", "sums rows [0, 8)", "C of ranks 0 1"});
  expect_wrong(reduced(Reduced::by_one_only), "content",
               {"out on rank 0", "C of ranks 0 1", "but holds C of ranks 0 of"});
  expect_wrong(reduced(Reduced::with_itself), "content",
               {"rank 0, lane compute, step 1 (reduce)", "adds product on rank 0"});
}

TEST(VerifyContent, AContributionThatIsNothing) {
  Hand hand = reduced(Reduced::once);
  hand.plan.ranks[1].lanes[0].steps[0] = Fill{hand.all(3, 1)};
  expect_wrong(hand, "content", {"out on rank", "holds nothing"});
}

TEST(VerifyContent, ScatterGivesEachRankItsShard) {
  const auto made = [](std::int64_t first_of_1) {
    Hand hand(small(Op::gemm_reducescatter));
    const auto product = hand.buffer("product", 8, 8);
    for (int r = 0; r < 2; ++r) {
      Gemm gemm = hand.gemm(r, hand.all(product, r));
      if (first_of_1 != 0) gemm.a_rows = {4, 1, 2, 2, 0, 8};
      gemm.out.form = placement::Matrix{first_of_1 == 0 ? RowMap{2, 4, 4, 4, 0, 8} : gemm.a_rows};
      hand.step(r, 0, gemm);
      hand.step(r, 0,
                Hand::collective(CollectiveKind::reducescatter, hand.all(product, r), hand.all(hand.out, r)));
    }
    return hand;
  };
  expect_proven(made(0));
  expect_proven(made(1));
  Hand shifted = made(0);
  for (int r = 0; r < 2; ++r)
    std::get<Gemm>(shifted.plan.ranks[static_cast<std::size_t>(r)].lanes[0].steps[0]).a_rows = {4, 1, 2,
                                                                                                2, 0, 8};
  expect_wrong(shifted, "content", {"out on rank 1, rows [0, 1)", "row 4", "row 1"});
}

TEST(VerifyContent, PartsCountInTheCommunicatorsOrder) {
  // A communicator may list its ranks in any order: part 0 of what is gathered is then of its first rank.
  const auto made = [](std::vector<std::int32_t> ranks, bool as_listed) {
    Hand hand(small(Op::allgather_gemm));
    hand.plan.communicators[0].ranks = std::move(ranks);
    const auto gathered = hand.buffer("gathered", 8, 4);
    for (int r = 0; r < 2; ++r) {
      hand.step(r, 0,
                Hand::collective(CollectiveKind::allgather, hand.all(hand.a, r), hand.all(gathered, r)));
      for (int part = 0; part < 2; ++part) {
        Gemm gemm = hand.gemm(
            r,
            hand.rows(
                hand.out, r,
                4 * (as_listed ? hand.plan.communicators[0].ranks[static_cast<std::size_t>(part)] : part), 4),
            4 * part);
        gemm.a = hand.all(gathered, r);
        hand.step(r, 0, gemm);
      }
    }
    return hand;
  };
  expect_proven(made({0, 1}, true));
  expect_proven(made({1, 0}, true));
  expect_wrong(made({1, 0}, false), "content", {"out on rank 1, rows [0, 4)", "row 0", "row 4"});
}

}  // namespace
}  // namespace shingle::verify_content_test
