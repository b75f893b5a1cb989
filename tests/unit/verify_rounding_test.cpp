// The order of sums and the roundings of a plan: ranks agree to the last bit, and what a plan says is what
// its steps do.
#include <algorithm>

#include "shingle/plan/json.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/expect_proof.hpp"

namespace shingle::verify_rounding_test {
namespace {

using namespace test;

Machine machine(int ranks) {
  Machine machine;
  machine.ranks = ranks;
  machine.workers = 4;
  return machine;
}

Problem problem(Op op, int world = 3, DType dtype = DType::bf16) {
  Problem p = small(op, world);
  p.dtype = dtype;
  p.m = 12;
  if (!p.traits().multiplies()) p.k = p.n;
  return p;
}

Plan one_shot(int world = 3) {
  return plan_fused(problem(Op::gemm_allreduce, world), machine(world), {.one_shot = true}).value();
}
Plan by_shards(bool stage_fp32 = false) {
  return plan_fused(problem(Op::gemm_reducescatter), machine(3), {.stage_fp32 = stage_fp32}).value();
}

/// The sums of a rank, of all its lanes, in another order.
void reverse_sums(Plan& plan, int rank) {
  for (Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (Step& step : lane.steps)
      if (auto* pass = std::get_if<Elementwise>(&step); pass && pass->from.size() > 1)
        std::ranges::reverse(pass->from);
}

void says(Plan& plan, const Rounding& rounding) {
  plan.rounding = sentence(plan.work, rounding);
}

TEST(VerifyRounding, RanksThatSumInAnotherOrderDoNotAgree) {
  Plan plan = one_shot();
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
  reverse_sums(plan, 1);
  expect_wrong(plan, "rounding",
               {"out on rank 2", "bf16(((bf16(C0) + bf16(C1)) + bf16(C2)))", "the same elements on rank 1",
                "bf16(((bf16(C2) + bf16(C1)) + bf16(C0)))", "last bits"});
  says(plan, {});  // what is true of every plan does not make ranks agree
  expect_wrong(plan, "rounding", {"the same elements on rank 1"});
}

TEST(VerifyRounding, ASumOfTwoHasNoOrder) {
  Plan plan = one_shot(2);
  reverse_sums(plan, 1);
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
}

TEST(VerifyRounding, OfAShardOneRankAloneDecidesButAsThePlanSays) {
  Plan plan = by_shards();
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
  reverse_sums(plan, 1);
  expect_wrong(plan, "rounding", {"in rank order", "not what its steps do", "expected \"every step"});
  says(plan, {});
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
}

TEST(VerifyRounding, AllRanksInAnotherOrderAgreeButDoNotSumInRankOrder) {
  Plan plan = one_shot();
  for (int rank = 0; rank < 3; ++rank) reverse_sums(plan, rank);
  expect_wrong(plan, "rounding", {"in rank order", "not what its steps do"});
}

TEST(VerifyRounding, ForgedSentencesAreRefusedAndTheTrueOneIsShown) {
  Plan plan = by_shards();
  const std::string truth = plan.rounding;
  plan.rounding = "exact";
  expect_wrong(plan, "rounding", {"\"exact\"", "none of the sentences", truth.c_str()});
  for (const Rounding& forged :
       {Rounding{Summing::rank_order, DType::f32}, Rounding{Summing::library, DType::bf16},
        Rounding{Summing::ring, DType::bf16}, Rounding{Summing::none, DType::bf16},
        Rounding{Summing::rank_order, DType::bf16, true}}) {
    says(plan, forged);
    expect_wrong(plan, "rounding", {truth.c_str()});
  }
  // Such a file is read: what is wrong is what it says, not how.
  EXPECT_EQ(plan_from_json(to_json(plan)), plan);
}

TEST(VerifyRounding, WhatTravelsInFp32) {
  Plan plan = by_shards(true);
  EXPECT_THAT(plan.rounding, testing::HasSubstr("rounded once to f32 for their way"));
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
  says(plan, {Summing::rank_order, DType::bf16});
  expect_wrong(plan, "rounding", {"rounded once to f32 for their way"});
}

TEST(VerifyRounding, AroundTheRing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Plan plan = plan_ring(problem(Op::gemm_reducescatter, 4, dtype), machine(4), {}).value();
    EXPECT_THAT(plan.rounding, testing::HasSubstr("around the ring"));
    EXPECT_TRUE(verify(plan)) << verify(plan).failure;
    says(plan, {Summing::rank_order, dtype});
    expect_wrong(plan, "rounding", {"around the ring"});
  }
}

TEST(VerifyRounding, ALastPassRoundsOnceMore) {
  Problem p = problem(Op::gemm_allreduce);
  p.norm.enabled = true;
  Plan plan = plan_sequential(p, machine(3), {}).value();
  EXPECT_THAT(plan.rounding, testing::HasSubstr("; a last pass"));
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
  says(plan, {Summing::library, DType::bf16});
  expect_wrong(plan, "rounding", {"not what its steps do", "; a last pass"});
}

/// A sum by a library twice: the second call may cut the rows differently from the first one.
TEST(VerifyRounding, CallsOfALibraryAreNoTwoTimesTheSame) {
  for (const bool same : {true, false}) {
    Hand hand(problem(Op::gemm_allreduce, 2));
    const auto product = hand.buffer("product", 12, 8), first = hand.buffer("first", 12, 8),
               second = hand.buffer("second", 12, 8);
    for (int r = 0; r < 2; ++r) {
      hand.step(r, 0, hand.gemm(r, hand.all(product, r)));
      for (const auto to : {first, second})
        hand.step(r, 0, Hand::collective(CollectiveKind::allreduce, hand.all(product, r), hand.all(to, r)));
      hand.step(r, 0, Hand::pass({hand.all(same || r == 0 ? first : second, r)}, hand.all(hand.out, r)));
    }
    if (same)
      expect_proven(hand);
    else
      expect_wrong(hand, "rounding", {"out on rank 1", "library(bf16(C0), bf16(C1))", "on rank 0"});
  }
}

TEST(VerifyRounding, ARoundingMoreOnOneRankIsSeen) {
  // Rank 1 keeps the sum before its epilogue; rank 0 applies it to the sum in fp32.
  for (const bool alike : {true, false}) {
    Problem p = problem(Op::gemm_allreduce, 2);
    p.epilogue.activation = Activation::gelu;
    Hand hand(p);
    const auto product = hand.buffer("product", 12, 8), parts = hand.buffer("parts", 24, 8),
               kept = hand.buffer("kept", 12, 8);
    for (int r = 0; r < 2; ++r) {
      hand.step(r, 0, hand.gemm(r, hand.all(product, r)));
      hand.step(r, 0, Hand::collective(CollectiveKind::allgather, hand.all(product, r), hand.all(parts, r)));
      Elementwise sum =
          Hand::pass({hand.rows(parts, r, 0, 12), hand.rows(parts, r, 12, 12)}, hand.all(hand.out, r));
      if (alike || r == 0) {
        sum.epilogue = p.epilogue;
        hand.step(r, 0, sum);
        continue;
      }
      sum.to = Hand::in(hand.all(kept, r));
      Elementwise apply = Hand::pass({hand.all(kept, r)}, hand.all(hand.out, r));
      apply.epilogue = p.epilogue;
      hand.step(r, 0, sum).step(r, 0, apply);
    }
    if (alike)
      expect_proven(hand);
    else
      expect_wrong(hand, "rounding", {"bf16(pass(bf16(", "bf16(pass((bf16("});
  }
}

}  // namespace
}  // namespace shingle::verify_rounding_test
