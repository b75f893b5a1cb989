// ring is free of tails, shown on its plans in unit costs: where a slice takes no longer to send than to
// compute, nothing but computation is on the critical path; where it takes longer, nothing but messages and
// one slice is.
#include <gtest/gtest.h>

#include <algorithm>

#include "report/trace.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::ring_test {
namespace {

/// Every slice has four rows, so that all cost the same.
Plan plan_of(const Params& params, Op op, int world, int slices) {
  Problem p;
  p.op = op;
  p.world = world;
  p.m = 4 * world * slices;
  p.n = 8;
  p.k = 8;
  Machine machine;
  machine.workers = 2;
  return plan_with(p, machine, params).value();
}
Plan ring_of(Op op, int world, int slices, int engines = 0) {
  return plan_of(RingParams{.engines = engines, .slices = slices}, op, world, slices);
}

/// When the last step of any rank ends, in the time that one slice takes to compute; to send it takes
/// `message`. Passes cost nothing.
double makespan(const Plan& plan, double message) {
  const double slice = 4.0 * 8;  // elements: of a row of A as many as of C
  const Timeline timeline = schematic(plan, {1 / slice, 0, message / slice});
  return std::ranges::max_element(timeline.spans, {}, &Span::end_us)->end_us;
}

constexpr double ratios[] = {0.01, 0.3, 0.7, 1.0, 1.2, 2.0, 7.0};

class Ring : public ::testing::TestWithParam<Op> {
 protected:
  static void expect_least(int world, int slices, int engines) {
    const Plan plan = ring_of(GetParam(), world, slices, engines);
    for (const double message : ratios) {
      const double computation = world * slices;
      // Every rank sends all slices but those of one shard. Before the first message of a reduce-scatter
      // one slice is computed, after the last one of an all-gather.
      const double messages = 1 + (world - 1) * slices * message;
      const double bound = message <= 1 ? computation : std::max(computation, messages);
      EXPECT_NEAR(makespan(plan, message), bound, 1e-9 * bound)
          << world << " ranks, " << slices << " slices, " << engines << " engines, a message takes "
          << message;
    }
  }
};

TEST_P(Ring, HidesAllMessagesOrNothingButMessagesIsLeft) {
  for (int world = 2; world <= 9; ++world)
    for (int slices = 1; slices <= 8; ++slices)
      for (const int engines : {0, 1}) expect_least(world, slices, engines);
}

INSTANTIATE_TEST_SUITE_P(Plans, Ring, ::testing::Values(Op::gemm_reducescatter, Op::allgather_gemm),
                         [](const auto& param) {
                           return param.param == Op::gemm_reducescatter ? "ReduceScatter" : "AllGather";
                         });

/// The same bound does not hold for data slicing, whose last (or first) slice is exposed.
TEST_P(Ring, HasNoTailWhereChunkedHasOne) {
  for (int world = 2; world <= 9; ++world) {
    const Plan chunked = plan_of(ChunkedParams{.chunks = 4}, GetParam(), world, 4);
    const double tail = makespan(chunked, 0.7) - world * 4;
    EXPECT_NEAR(tail, (world - 1) * 0.7, 1e-9) << world << " ranks: one chunk of every rank";
  }
}

TEST(RingAllreduce, ExposesTheGatherOfTheLastSliceOnly) {
  for (int world = 2; world <= 9; ++world)
    for (int slices = 1; slices <= 8; ++slices) {
      for (const int engines : {0, 1}) {
        const Plan plan = ring_of(Op::gemm_allreduce, world, slices, engines);
        for (const double message : {0.01, 0.2, 0.5}) {
          const double bound = world * slices + (world - 1) * message;
          EXPECT_NEAR(makespan(plan, message), bound, 1e-9 * bound)
              << world << " ranks, " << slices << " slices, " << engines << " engines, a message takes "
              << message;
        }
      }
    }
}

TEST(RingAllreduce, IsAsLongAsItsMessagesWhereTheyTakeLonger) {
  for (int world = 2; world <= 9; ++world)
    for (int slices = 1; slices <= 8; ++slices) {
      const Plan plan = ring_of(Op::gemm_allreduce, world, slices);
      for (const double message : {1.0, 2.0, 7.0}) {
        const double bound = 1 + 2 * (world - 1) * slices * message;
        const double found = makespan(plan, message);
        EXPECT_GE(found, bound * (1 - 1e-9));
        EXPECT_LE(found, bound + 1) << world << " ranks, " << slices << " slices, a message takes "
                                    << message;
      }
    }
}

}  // namespace
}  // namespace shingle::ring_test
