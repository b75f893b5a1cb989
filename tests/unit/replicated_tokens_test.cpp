// Tensor-parallel experts of tokens that all ranks have: how many workers their products take.
#include <gtest/gtest.h>

#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::replicated_tokens_test {
namespace {

/// Workers of the two products of a rank.
std::vector<std::int32_t> workers_of(const Params& params) {
  Problem problem{
      .op = Op::moe_allreduce, .world = 2, .n = 4096, .k = 4096, .inner = 7168, .dtype = DType::bf16};
  problem.epilogue.activation = Activation::swiglu;
  problem.experts = {8, 2, 4096};
  const Result<Plan> plan = make_plan(with_m(problem, 4096), machine_from_spec("h200x8"), params);
  EXPECT_TRUE(plan) << plan.reason();
  std::vector<std::int32_t> workers;
  for (const Lane& lane : plan->ranks[0].lanes)
    for (const Step& step : lane.steps)
      if (const auto* gemm = std::get_if<Gemm>(&step)) workers.push_back(gemm->resources.most);
  return workers;
}

TEST(ReplicatedTokens, FirstProductLeavesRoomForLanesThatWait) {
  const std::vector<std::int32_t> all{132, 132};
  EXPECT_EQ(workers_of(SequentialParams{}), all);
  EXPECT_EQ(workers_of(FusedParams{.helpers = FusedParams::no_helpers}), all);
  EXPECT_EQ(workers_of(FusedParams{.helpers = 4}), (std::vector<std::int32_t>{131, 128}));
  const SignalParams none{.helpers = FusedParams::no_helpers};
  EXPECT_EQ(workers_of(none), (std::vector<std::int32_t>{131, 131}));
  SignalParams strips = none;
  strips.group_waves = {1, 1};
  EXPECT_EQ(workers_of(strips), (std::vector<std::int32_t>{131, 116}));
}

}  // namespace
}  // namespace shingle::replicated_tokens_test
