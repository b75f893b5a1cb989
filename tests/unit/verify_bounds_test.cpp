// What a proof costs: counted, so that a plan that is too large is refused alike on every machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verify/budget.hpp"

#include "base/file.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/expect_proof.hpp"
#include "workload/routing_patterns.hpp"

namespace shingle::verify_bounds_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// All by the rule "size", in one line, and at once: the work that was counted is little above the limit.
void expect_too_large(const Plan& plan, const std::string& what) {
  const Proof proof = verify(plan);
  EXPECT_FALSE(proof.ok);
  EXPECT_EQ(proof.rule, "size");
  EXPECT_THAT(proof.failure,
              AllOf(HasSubstr("too large to prove: the proof takes more than "), HasSubstr(what)));
  EXPECT_EQ(proof.failure.find('\n'), std::string::npos);
}

Plan plan_of(const char* file) {
  return plan_from_json(read_file(SHINGLE_TEST_SOURCE_DIR "/tests/data/plans/" + std::string(file), 1 << 24));
}

/// A copy-engine plan for rows that go to other ranks at random.
Plan shuffled(int world, std::int64_t m, std::int64_t n = 64) {
  Problem p{.op = Op::alltoall, .world = world};
  p.m = m, p.n = p.k = n;
  p.routing = std::make_shared<const Routing>(make_routing(
      RoutingPattern::random, world, std::vector<std::int64_t>(static_cast<std::size_t>(world), m), 0));
  Machine machine;
  return make_plan(p, machine, CopyEngineParams{}).value();
}

TEST(Budget, NamesWhatThereIsTooMuchOf) {
  Budget budget;
  budget.spend(Budget::accessed, 1000);
  try {
    budget.spend(Budget::expanded, std::int64_t{1} << 62);
    FAIL() << "not refused";
  } catch (const TooLarge& refused) {
    EXPECT_THAT(refused.text, HasSubstr("140000000 tiles and their pieces or more"));
  }
  EXPECT_THROW(budget.spend(Budget::compared, 1), TooLarge) << "from then on";
}

TEST(Budget, LetsGoOfWhatIsReleased) {
  Budget budget;
  for (int i = 0; i < 1000; ++i) {
    budget.keep(Budget::cells, Budget::most_kept / 2);
    budget.release(Budget::cells, Budget::most_kept / 2);
  }
  budget.keep(Budget::schedule, Budget::most_kept / 2);
  EXPECT_THROW(budget.keep(Budget::cells, Budget::most_kept / 2 + 1), TooLarge);
}

/// 957 bytes that say 64 times two thousand million rows, each a piece of its own.
TEST(VerifyBounds, RowsOneByOneAreCountedBeforeTheyAreWalkedOver) {
  expect_too_large(plan_of("rows_one_by_one.json"), "tiles and their pieces");
}

TEST(VerifyBounds, PositionsAreCountedBeforeTheyAreWalkedOver) {
  Plan plan = plan_of("rows_one_by_one.json");
  auto& gemm = std::get<Gemm>(plan.ranks[0].lanes[0].steps[0]);
  gemm.out.form = placement::Matrix{RowMap::identity(plan.problem().m)};
  gemm.grid.loops[1] = {Axis::m, 1 << 25, 0, false};  // of which one is no phantom
  gemm.grid.loop_count = 2;
  expect_too_large(plan, "tiles and their pieces");
}

TEST(VerifyBounds, ManyRunsOfTilesAreRefused) {
  constexpr std::int64_t rows = 1 << 20;
  Problem p;
  p.m = rows, p.n = p.k = 1;
  test::Hand hand(p);
  const std::int32_t counter = hand.counter("open");
  Gemm gemm = hand.gemm(0, hand.all(hand.out, 0), 0, 1);
  TileGate gate{counter, {}, std::vector<std::uint32_t>(rows, 0), std::vector<std::int32_t>(rows, 0)};
  for (std::int64_t end = 1; end <= rows; ++end) gate.ends.push_back(end);
  gemm.gates.push_back(std::move(gate));
  gemm.resources = {1, 1};
  hand.step(0, 0, std::move(gemm));
  expect_too_large(hand.plan, "320.0 MiB of memory, mostly for the schedule");
}

/// Reading four times as many rows takes some four times the work: nothing in it is quadratic.
TEST(VerifyBounds, WorkIsProportionalToRows) {
  const Proof small = verify(shuffled(4, 512)), large = verify(shuffled(4, 2048));
  ASSERT_TRUE(small.ok) << small.failure;
  ASSERT_TRUE(large.ok) << large.failure;
  EXPECT_GT(large.work, 2 * small.work);
  EXPECT_LT(large.work, 6 * small.work);
  EXPECT_EQ(verify(shuffled(4, 512)).work, small.work) << "counted, not timed";
}

TEST(VerifyBounds, SixtyFourRanksFit) {
  const Proof proof = verify(shuffled(64, 256));
  EXPECT_TRUE(proof.ok) << proof.failure;
}

}  // namespace
}  // namespace shingle::verify_bounds_test
