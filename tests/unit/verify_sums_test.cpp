// Sums of own tiles: proven as they are, and refused with a defect in one place.
#include <algorithm>
#include <functional>

#include "shingle/plan/rounding.hpp"
#include "support/expect_proof.hpp"
#include "support/mutations.hpp"
#include "support/own_sums.hpp"
#include "support/proven.hpp"

namespace shingle::verify_sums_test {
namespace {

using namespace test;
using Edit = std::function<bool(Gemm&)>;

/// An edit of the products with sums only.
Edit of_sums(std::function<void(Gemm&)> edit) {
  return [edit = std::move(edit)](Gemm& gemm) {
    if (gemm.sums.from.empty()) return false;
    edit(gemm);
    return true;
  };
}

void expect_sums_refused(const Plan& plan, const std::string& rule, std::function<void(Gemm&)> edit) {
  expect_refused<Gemm>(plan, rule, of_sums(std::move(edit)));
}

std::vector<Plan> plans(int least_world = 2, bool epilogue = false) {
  std::vector<Plan> all;
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce})
    for (int world = least_world; world <= 5; ++world) all.push_back(with_own_sums(op, world, epilogue));
  if (!epilogue) all.push_back(with_own_sums(Op::mlp, std::max(least_world, 2)));
  return all;
}

TEST(VerifySums, AreProven) {
  for (const bool epilogue : {false, true})
    for (const Plan& plan : plans(2, epilogue)) ASSERT_NO_FATAL_FAILURE(test::expect_proven(plan));
}

TEST(VerifySums, WithoutAPart) {
  for (const Plan& plan : plans()) {
    if (plan.world() == 2) continue;  // a sum of one part is none without it
    expect_sums_refused(plan, "content", [](Gemm& g) { g.sums.from.pop_back(); });
  }
}

TEST(VerifySums, WithAPartTwice) {
  for (const Plan& plan : plans())
    expect_sums_refused(plan, "content", [](Gemm& g) { g.sums.from.push_back(g.sums.from.front()); });
}

TEST(VerifySums, OfPartsInAnotherOrder) {
  for (const Plan& plan : plans(3))
    expect_sums_refused(plan, "rounding", [](Gemm& g) { std::ranges::reverse(g.sums.from); });
}

TEST(VerifySums, OfAnotherRanksRegion) {
  for (const Plan& plan : plans(3))
    expect_sums_refused(plan, "content", [](Gemm& g) { g.sums.from[0].slice = g.sums.from[1].slice; });
}

TEST(VerifySums, WithTheOwnRegionWhereNothingIsStored) {
  for (const Plan& plan : plans())
    expect_sums_refused(plan, "content", [](Gemm& g) {
      Placement own = g.sums.from.front();
      own.slice.row = g.out.slice.row;
      g.sums.from.push_back(own);
    });
}

TEST(VerifySums, WhoseGateIsOneTooLow) {
  for (const Plan& plan : plans())
    expect_sums_refused(plan, "race", [](Gemm& g) {
      for (TileGate& gate : g.gates)
        if (gate.of_parts)
          for (std::uint32_t& target : gate.targets) target -= target > 0 ? 1 : 0;
    });
}

TEST(VerifySums, WithoutAGate) {
  for (const Plan& plan : plans())
    expect_sums_refused(plan, "", [](Gemm& g) {
      std::erase_if(g.gates, [](const TileGate& gate) { return gate.of_parts; });
    });
}

TEST(VerifySums, StoredToOtherRows) {
  for (const Plan& plan : plans())
    expect_sums_refused(plan, "", [](Gemm& g) {
      for (Placement& to : g.sums.to) {
        RowMap& rows = std::get<placement::Matrix>(to.form).rows;
        rows.base += 1;
        rows.limit = to.slice.rows;
      }
    });
}

TEST(VerifySums, NotStoredOnARank) {
  expect_sums_refused(with_own_sums(Op::gemm_allreduce, 3), "content",
                      [](Gemm& g) { std::get<placement::Matrix>(g.sums.to[0].form).ranks.pop_back(); });
}

Plan kept_and_sent(int world) {
  return plan_fused(own_sums_problem(Op::gemm_allreduce, world), own_sums_machine(world),
                    {.sums = SumsIn::epilogue, .unregistered = true})
      .value();
}

TEST(VerifySums, AreProvenAtSeveralPlaces) {
  for (int world = 2; world <= 5; ++world) ASSERT_NO_FATAL_FAILURE(test::expect_proven(kept_and_sent(world)));
}

TEST(VerifySums, NotStoredAtOneOfTheirPlaces) {
  for (const bool kept : {false, true})
    expect_sums_refused(kept_and_sent(3), "content",
                        [&](Gemm& g) { g.sums.to.erase(kept ? g.sums.to.begin() + 1 : g.sums.to.begin()); });
}

TEST(VerifySums, StoredToAMatrixOfPeersThatNoneAwaits) {
  expect_sums_refused(kept_and_sent(3), "",
                      [](Gemm& g) { g.sums.to[1].slice.buffer = g.sums.to[0].slice.buffer; });
}

TEST(VerifySums, WithoutTheirEpilogue) {
  for (const Plan& plan : plans(2, true))
    expect_sums_refused(plan, "content", [](Gemm& g) {
      g.epilogue = {};
      g.bias = {};
    });
}

TEST(VerifySums, EpilogueOfAPart) {
  for (const Plan& plan : plans(2, true))
    expect_sums_refused(plan, "content", [](Gemm& g) {
      g.sums = {};
      g.gates.clear();
    });
}

TEST(VerifySums, SaysHowItRounds) {
  for (Plan plan : plans(3)) {
    const std::string truth = plan.rounding;
    for (const Rounding& forged :
         {Rounding{Summing::rank_order, DType::bf16}, Rounding{Summing::owner_first},
          Rounding{Summing::ring, DType::bf16}, Rounding{Summing::owner_first, DType::bf16, true}}) {
      plan.rounding = sentence(plan.work, forged);
      expect_wrong(plan, "rounding", {"not what its steps do", truth.c_str()});
    }
    plan.rounding = sentence(plan.work, {});  // true of every plan
    EXPECT_TRUE(verify(plan)) << verify(plan).failure;
  }
}

/// Two products of a rank: the part of one is summed as if it were the own product, which is rounded too.
TEST(VerifySums, APassDoesNotSumOwnersFirst) {
  Plan plan =
      plan_fused(own_sums_problem(Op::gemm_reducescatter, 3), own_sums_machine(3), {.sums = SumsIn::pass})
          .value();
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
  plan.rounding = sentence(plan.work, {Summing::owner_first, DType::bf16});
  expect_wrong(plan, "rounding", {"not what its steps do"});
}

/// A in internal memory, which another lane fills. Own tiles, and no others, await that by a gate of their
/// own.
Plan with_moved_a(bool of_parts) {
  Plan plan = with_own_sums(Op::gemm_reducescatter, 3);
  plan.workers += 1;
  const Problem& p = plan.problem();
  const auto moved = static_cast<std::int32_t>(plan.buffers.size()), a = find_buffer(plan, Role::a);
  plan.buffers.push_back({"moved", Role::internal, p.dtype, std::vector<std::int64_t>(3, p.m), p.k});
  const auto filled = static_cast<std::int32_t>(plan.counters.size());
  plan.counters.push_back({"filled", CounterKind::add, {{0}, {0}, {0}}});
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    RankPlan& of = plan.ranks[static_cast<std::size_t>(rank)];
    Gemm& gemm = summing(plan, rank);
    gemm.a.buffer = moved;
    TileGate parts = gemm.gates.back(), others = parts, own = parts;
    for (TileGate* gate : {&others, &own}) {
      gate->counter = filled;
      gate->entries.assign(gate->ends.size(), 0);
      for (std::size_t group = 0; group < gate->ends.size(); ++group)
        gate->targets[group] = (parts.targets[group] > 0) == (gate == &own) ? 1 : 0;
    }
    others.of_parts = false;
    own.of_parts = of_parts;
    gemm.gates = {others, own, parts};
    Elementwise move = Hand::pass({whole(plan, a, rank)}, whole(plan, moved, rank));
    move.notify = {{filled, {rank}, {1}}};
    of.lanes.push_back({LaneKind::compute, "move", {move}});
    of.issue.insert(of.issue.begin(), static_cast<std::int32_t>(of.lanes.size()) - 1);
  }
  count_growth(plan);
  return plan;
}

TEST(VerifySums, OperandsDoNotAwaitGatesOfParts) {
  const Proof right = verify(with_moved_a(false));
  EXPECT_TRUE(right) << right.rule << ": " << right.failure;
  expect_wrong(with_moved_a(true), "race", {"reads moved", "with no order between them"});
}

}  // namespace
}  // namespace shingle::verify_sums_test
