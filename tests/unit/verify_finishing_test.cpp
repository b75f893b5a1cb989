// Plans by hand whose products and sums are right, and whose epilogue or norm is wrong, beside those that
// finish them as the problem says (DESIGN §4, rule 8).
#include "support/expect_proof.hpp"

namespace shingle::verify_finishing_test {
namespace {

using namespace test;

Problem with_epilogue(Op op, int world, bool bias, Activation activation) {
  Problem p = small(op, world);
  p.epilogue = {bias, activation};
  return p;
}

TEST(VerifyFinishing, TheEpilogueOfTheProblem) {
  const Problem p = with_epilogue(Op::gemm, 1, true, Activation::gelu);
  expect_proven(Direct(p));
  Direct none(p), other(p);
  none.product().epilogue = {};
  none.product().bias = {};
  expect_wrong(none, "content", {"out on rank 0", "epilogue applied", "holds C of ranks 0 of epoch 0"});
  other.product().epilogue.activation = Activation::relu;
  expect_wrong(other, "content",
               {"rank 0, lane compute, step 0 (gemm)", "an epilogue that is not the problem's"});
}

TEST(VerifyFinishing, TheEpilogueOnceAndAfterTheSum) {
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
  expect_wrong(made(false, true), "content", {"step 3", "a second time"});
}

TEST(VerifyFinishing, TheBiasOfTheColumn) {
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

TEST(VerifyFinishing, SwigluTakesGateAndUpOfTheSameColumns) {
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

TEST(VerifyFinishing, NormsAndResiduals) {
  expect_proven(Normed(false).made());
  expect_proven(Normed(true).made());
  expect_proven(Normed(true, Activation::swiglu).made());
}

TEST(VerifyFinishing, TheNormOnce) {
  for (const bool with_residual : {false, true}) {
    Normed plan(with_residual);
    Elementwise again = plan.finish;
    plan.finish.to = again.from[0] = Hand::in(plan.all(plan.buffer("normed", 8, 8), 0));
    plan.step(0, 0, plan.finish).step(0, 0, again);
    expect_wrong(plan, "content", {"rank 0, lane compute, step 2", "already normalised"});
  }
}

TEST(VerifyFinishing, TheNormOfTheProblem) {
  Normed plan(false);
  plan.finish.norm.epsilon = 1.0f;
  expect_wrong(plan.made(), "content", {"rank 0, lane compute, step 1", "a norm that is not the problem's"});
}

TEST(VerifyFinishing, ResidualsOfAllRowsAndOfTheSame) {
  Normed missing(true), other(true);
  std::get<placement::Matrix>(missing.finish.residual.form).rows.limit = 5;
  expect_wrong(missing.made(), "content", {"rank 0, lane compute, step 1", "a residual for 1 of 4 rows"});
  other.finish.residual.form = placement::Matrix{{4, 1, 2, 2, 0, 8}};
  expect_wrong(other.made(), "content",
               {"rank 0, lane compute, step 1", "the residual, which belongs to other rows"});
}

TEST(VerifyFinishing, CompleteRows) {
  // silu(gate) · up over 6 of 8 columns would pair column 0 with 3, and call 4 columns finished.
  Hand hand(with_epilogue(Op::gemm, 1, false, Activation::swiglu));
  const auto product = hand.buffer("product", 8, 8);
  Slice some = hand.all(product, 0);
  some.cols = 6;
  Elementwise pass = Hand::pass({some}, hand.all(hand.out, 0));
  pass.epilogue = hand.plan.problem().epilogue;
  hand.step(0, 0, hand.gemm(0, hand.all(product, 0))).step(0, 0, pass);
  expect_wrong(hand, "content", {"rank 0, lane compute, step 1", "6 columns; complete rows have 8"});
}

TEST(VerifyFinishing, NormsComeAfterTheSum) {
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

TEST(VerifyFinishing, ARowPassInPlaceStoresEveryColumnOverItself) {
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
               {"step 3 (permute)", "may overwrite rows of wide before it reads them"});
  expect_proven(made(0, true));
  expect_wrong(made(4, true), "race", {"may overwrite rows of wide before it reads them"});
}

}  // namespace
}  // namespace shingle::verify_finishing_test
