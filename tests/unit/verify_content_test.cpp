// Plans by hand that finish without a race and compute the wrong thing, beside those that compute the right
// one (DESIGN §4, rule 8).
#include "support/expect_proof.hpp"

namespace shingle::verify_content_test {
namespace {

using namespace test;

/// One rank, one GEMM straight into the output; a test spoils it.
struct Direct : Hand {
  explicit Direct(const Problem& p) : Hand(p) {
    for (int r = 0; r < p.world; ++r) {
      Gemm g = gemm(r, all(out, r));
      g.epilogue = p.epilogue;
      if (p.epilogue.bias) g.bias = all(bias, r);
      step(r, 0, g);
    }
  }
  Gemm& product(int rank = 0) {
    return std::get<Gemm>(plan.ranks[static_cast<std::size_t>(rank)].lanes[0].steps[0]);
  }
};

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
  expect_wrong(a, "content", {"rank 0, lane compute, step 0 (gemm)", "for its rows of A"});
  expect_wrong(b, "content", {"rank 0, lane compute, step 0 (gemm)", "for its columns of B"});
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

// ----------------------------------------------------------------------------------------------------
// epilogues

Problem with_epilogue(Op op, int world, bool bias, Activation activation) {
  Problem p = small(op, world);
  p.epilogue = {bias, activation};
  return p;
}

TEST(VerifyContent, TheEpilogueOfTheProblem) {
  const Problem p = with_epilogue(Op::gemm, 1, true, Activation::gelu);
  expect_proven(Direct(p));
  Direct none(p), other(p);
  none.product().epilogue = {};
  none.product().bias = {};
  expect_wrong(none, "content", {"out on rank 0", "epilogue applied", "holds C of ranks 0 of epoch 0"});
  other.product().epilogue.activation = Activation::relu;
  expect_wrong(other, "content", {"rank 0, lane compute, step 0 (gemm)", "another epilogue"});
}

TEST(VerifyContent, TheEpilogueOnceAndAfterTheSum) {
  const auto made = [](bool before, bool after) {
    Hand hand(with_epilogue(Op::gemm_allreduce, 2, false, Activation::relu));
    const auto product = hand.buffer("product", 8, 8);
    for (int r = 0; r < 2; ++r) {
      Gemm gemm = hand.gemm(r, hand.all(product, r));
      if (before) gemm.epilogue = hand.plan.problem().epilogue;
      Elementwise finish = Hand::pass({hand.all(product, r)}, hand.all(hand.out, r));
      finish.epilogue = hand.plan.problem().epilogue;
      hand.step(r, 0, gemm)
          .step(r, 0,
                Hand::collective(CollectiveKind::allreduce, hand.all(product, r), hand.all(product, r)));
      hand.step(r, 0, finish);
      if (after)
        hand.step(r, 0, [&] {
          Elementwise again = finish;
          again.from[0] = again.to = Hand::in(hand.all(hand.out, r));
          return again;
        }());
    }
    return hand;
  };
  expect_proven(made(false, false));
  expect_wrong(made(true, false), "content",
               {"rank 0, lane compute, step 0 (gemm)", "before all ranks are summed"});
  expect_wrong(made(false, true), "content", {"step 3", "already passed"});
}

TEST(VerifyContent, TheBiasOfTheColumn) {
  const auto halves = [](std::int64_t wrong) {
    Hand hand(with_epilogue(Op::gemm, 1, true, Activation::none));
    for (const std::int64_t col : {0, 4}) {
      Slice to = hand.all(hand.out, 0), b = hand.all(hand.b, 0), bias = hand.all(hand.bias, 0);
      to.col = b.col = col;
      to.cols = b.cols = bias.cols = 4;
      bias.col = col ^ wrong;
      Gemm gemm = hand.gemm(0, to);
      gemm.b = b;
      gemm.epilogue = hand.plan.problem().epilogue;
      gemm.bias = bias;
      hand.step(0, 0, gemm);
    }
    return hand;
  };
  expect_proven(halves(0));
  expect_wrong(halves(4), "content", {"rank 0, lane compute, step 0 (gemm)", "bias on rank 0", "row vector"});
  // The same in a pass of its own, over the right half of the columns.
  for (const std::int64_t wrong : {0, 4}) {
    Hand hand(with_epilogue(Op::gemm, 1, true, Activation::relu));
    const auto product = hand.buffer("product", 8, 8);
    hand.step(0, 0, hand.gemm(0, hand.all(product, 0)));
    for (const std::int64_t col : {0, 4}) {
      Slice from = hand.all(product, 0), to = hand.all(hand.out, 0), bias = hand.all(hand.bias, 0);
      from.col = to.col = col;
      from.cols = to.cols = bias.cols = 4;
      bias.col = col ^ wrong;
      Elementwise pass = Hand::pass({from}, to);
      pass.epilogue = hand.plan.problem().epilogue;
      pass.bias = bias;
      hand.step(0, 0, pass);
    }
    if (wrong == 0)
      expect_proven(hand);
    else
      expect_wrong(hand, "content", {"step 1", "bias on rank 0"});
  }
}

TEST(VerifyContent, SwigluTakesGateAndUpOfTheSameColumns) {
  const Problem p = with_epilogue(Op::gemm, 1, true, Activation::swiglu);
  expect_proven(Direct(p));
  // Two of four output columns: their gate and up columns are not beside each other in B, so they are copied
  // together.
  const auto halves = [&](std::int64_t up_of) {
    Hand hand(p);
    const auto picked = hand.buffer("picked", 4, 4), biases = hand.buffer("biases", 1, 4);
    for (const std::int64_t col : {0, 2}) {
      const auto pick = [&](std::int32_t of, std::int32_t into, std::int64_t from, std::int64_t at) {
        Slice source = hand.all(of, 0), target = hand.all(into, 0);
        source.col = from, target.col = at;
        source.cols = target.cols = 2;
        hand.step(0, 0, Copy{source, target});
      };
      pick(hand.b, picked, col, 0);
      pick(hand.b, picked, 4 + (col ^ up_of), 2);
      pick(hand.bias, biases, col, 0);
      pick(hand.bias, biases, 4 + col, 2);
      Slice to = hand.all(hand.out, 0);
      to.col = col, to.cols = 2;
      Gemm gemm = hand.gemm(0, to);
      gemm.b = hand.all(picked, 0);
      gemm.epilogue = p.epilogue;
      gemm.bias = hand.all(biases, 0);
      hand.step(0, 0, gemm);
    }
    return hand;
  };
  expect_proven(halves(0));
  expect_wrong(halves(2), "content", {"rank 0, lane compute, step 4 (gemm)", "picked on rank 0"});
  // Of B itself, two columns of gate and the two behind them.
  Direct neighbours(p);
  neighbours.product().grid.cols = neighbours.product().grid.tile_cols = 2;
  neighbours.product().b.cols = neighbours.product().bias.cols = 4;
  expect_wrong(neighbours, "content", {"rank 0, lane compute, step 0 (gemm)", "columns of B"});
}

// -----------------------------------------------------------------------------------------------------------
// norms

/// One rank: product, then a pass that normalises it.
struct Normed : Hand {
  std::int32_t product = buffer("product", 8, 8);
  Elementwise finish = pass({all(product, 0)}, all(out, 0), 4);

  explicit Normed(bool with_residual, Activation activation = Activation::none)
      : Hand([&] {
          Problem p = with_epilogue(Op::gemm, 1, false, activation);
          p.norm = {true, with_residual};
          return p;
        }()) {
    step(0, 0, gemm(0, all(product, 0)));
    finish.epilogue = plan.problem().epilogue;
    finish.norm = plan.problem().norm;
    finish.norm_weight = all(norm_weight, 0);
    finish.to = in(all(out, 0));
    if (with_residual) finish.residual = in(all(residual, 0)), finish.sum = in(all(sum, 0));
  }
  Hand made() { return step(0, 0, finish); }
};

TEST(VerifyContent, NormsAndResiduals) {
  expect_proven(Normed(false).made());
  expect_proven(Normed(true).made());
  expect_proven(Normed(true, Activation::swiglu).made());
}

TEST(VerifyContent, TheNormOnce) {
  for (const bool with_residual : {false, true}) {
    Normed plan(with_residual);
    Elementwise again = plan.finish;
    plan.finish.to = again.from[0] = Hand::in(plan.all(plan.buffer("normed", 8, 8), 0));
    plan.step(0, 0, plan.finish).step(0, 0, again);
    expect_wrong(plan, "content", {"rank 0, lane compute, step 2", "already normalised"});
  }
}

TEST(VerifyContent, TheNormOfTheProblem) {
  Normed plan(false);
  plan.finish.norm.epsilon = 1.0f;
  expect_wrong(plan.made(), "content", {"rank 0, lane compute, step 1", "another norm"});
}

TEST(VerifyContent, ResidualsOfAllRowsAndOfTheSame) {
  Normed missing(true), other(true);
  std::get<placement::Matrix>(missing.finish.residual.form).rows.limit = 5;
  expect_wrong(missing.made(), "content", {"rank 0, lane compute, step 1", "a residual for 1 of 4 rows"});
  other.finish.residual.form = placement::Matrix{{4, 1, 2, 2, 0, 8}};
  expect_wrong(other.made(), "content", {"rank 0, lane compute, step 1", "residual of other rows"});
}

TEST(VerifyContent, CompleteRows) {
  // silu(gate) · up over 6 of 8 columns would pair column 0 with 3, and call 4 columns finished.
  Hand hand(with_epilogue(Op::gemm, 1, false, Activation::swiglu));
  const auto product = hand.buffer("product", 8, 8);
  Slice some = hand.all(product, 0);
  some.cols = 6;
  Elementwise pass = Hand::pass({some}, hand.all(hand.out, 0));
  pass.epilogue = hand.plan.problem().epilogue;
  hand.step(0, 0, hand.gemm(0, hand.all(product, 0))).step(0, 0, pass);
  expect_wrong(hand, "content", {"rank 0, lane compute, step 1", "6 columns for complete rows of 8"});
}

TEST(VerifyContent, NormsComeAfterTheSum) {
  Problem p = small(Op::gemm_allreduce);
  p.norm.enabled = true;
  Hand hand(p);
  const auto product = hand.buffer("product", 8, 8);
  for (int r = 0; r < 2; ++r) {
    Elementwise finish = Hand::pass({hand.all(product, r)}, hand.all(hand.out, r));
    finish.norm = p.norm;
    finish.norm_weight = hand.all(hand.norm_weight, r);
    hand.step(r, 0, hand.gemm(r, hand.all(product, r))).step(r, 0, finish);
  }
  expect_wrong(hand, "content", {"rank 0, lane compute, step 1", "before all ranks are summed"});
}

// ----------------------------------------------------------------------------------------------------
// in place

TEST(VerifyContent, ARowPassInPlaceStoresEveryColumnOverItself) {
  // SwiGLU makes 4 columns of 8. A row is stored in chunks: those that lie over columns further right would
  // be read by chunks that come later.
  const auto made = [](std::int64_t col, bool norm) {
    Problem p = with_epilogue(Op::gemm_allreduce, 2, false, norm ? Activation::none : Activation::swiglu);
    p.norm.enabled = norm;
    Hand hand(p);
    const std::int64_t width = norm ? 8 : 4;
    const auto product = hand.buffer("product", 8, 8), wide = hand.buffer("wide", 8, 12);
    for (int r = 0; r < 2; ++r) {
      const Slice sum = hand.all(product, r);
      const auto at = [&](std::int64_t first, std::int64_t cols) {
        Slice slice = hand.all(wide, r);
        slice.col = first, slice.cols = cols;
        return slice;
      };
      Elementwise finish = Hand::pass({at(0, 8)}, at(col, width));
      finish.epilogue = p.epilogue, finish.norm = p.norm;
      if (norm) finish.norm_weight = hand.all(hand.norm_weight, r);
      hand.step(r, 0, hand.gemm(r, sum))
          .step(r, 0, Hand::collective(CollectiveKind::allreduce, sum, sum))
          .step(r, 0, Hand::pass({sum}, at(0, 8)))
          .step(r, 0, finish)
          .step(r, 0, Hand::pass({at(col, width)}, hand.all(hand.out, r)));
    }
    return hand;
  };
  expect_proven(made(0, false));
  expect_proven(made(8, false));  // apart
  expect_wrong(made(4, false), "race",
               {"step 3 (permute)", "stores over rows of wide that it has yet to read"});
  expect_proven(made(0, true));
  expect_wrong(made(4, true), "race", {"stores over rows of wide that it has yet to read"});
}

}  // namespace
}  // namespace shingle::verify_content_test
