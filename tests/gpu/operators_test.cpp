// Random problems on GPUs, every mechanism that serves them: exact where sums are exact, within bounds
// elsewhere.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cstdlib>
#include <map>

#include "cuda/devices.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/api/workspace.hpp"
#include "shingle/base/error.hpp"
#include "support/random_problem.hpp"

namespace shingle::test {
namespace {

constexpr Mechanism mechanisms[] = {Mechanism::sequential, Mechanism::chunked, Mechanism::signal};

/// How many problems to draw for a world: more than 300 for those of one to four. SHINGLE_GPU_PROBLEMS says
/// another number.
int problems() {
  const char* set = std::getenv("SHINGLE_GPU_PROBLEMS");
  return set != nullptr ? std::atoi(set) : 85;
}

/// Ragged rows; columns and depth as bulk loads want them.
Problem draw_problem(Dice& dice, int world) {
  Problem p;
  p.world = world;
  p.op = one_of(
      dice, {Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter, Op::gemm_alltoall, Op::allgather_gemm});
  p.m = chance(dice, 20) ? dice.size(1, 2 * world) : dice.size(1, chance(dice, 30) ? 3000 : 700);
  p.n = 8 * dice.size(1, chance(dice, 30) ? 300 : 80);
  p.k = 8 * dice.size(1, 100);
  p.dtype = one_of(dice, {DType::bf16, DType::f16});
  p.transpose_a = p.op != Op::allgather_gemm && p.op != Op::gemm_alltoall && chance(dice, 20);
  if (p.transpose_a) p.m = (p.m + 7) / 8 * 8;
  p.transpose_b = chance(dice, 60);
  if (chance(dice, 40)) {
    p.epilogue.bias = chance(dice, 50);
    p.epilogue.activation = one_of(
        dice, {Activation::none, Activation::relu, Activation::gelu, Activation::silu, Activation::swiglu});
    if (p.epilogue.activation == Activation::swiglu) p.n *= 2;
  }
  if (chance(dice, 30)) p.norm = {true, chance(dice, 50)};
  if (p.op == Op::gemm_reducescatter && chance(dice, 30)) {
    p.row_order = RowOrder::block_cyclic;
    p.row_block = dice.size(1, 128 / world);
  }
  if (p.routes()) {
    p.routing = random_routing(dice, world, p.m);
    p.m = 0;
    for (int rank = 0; rank < world; ++rank) p.m = larger(p.m, p.routing->rows(rank));
  }
  return p;
}

class Operators : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Operators, testing::Values(1, 2, 3, 4, 8),
                         testing::PrintToStringParamName());

TEST_P(Operators, RandomProblemsAreRight) {
  std::string why;
  if (cuda::count_gpus(why) < GetParam()) GTEST_SKIP() << GetParam() << " GPUs are needed: " << why;
  const auto world = make_world(GetParam(), {.backend = "cuda"});
  Dice dice(static_cast<std::uint64_t>(GetParam()));
  std::map<std::string, int> ran, unserved;
  for (int i = 0; i < problems(); ++i) {
    const Problem problem = draw_problem(dice, GetParam());
    if (problem.m == 0) continue;
    const auto inputs =
        random_inputs(problem, static_cast<std::uint64_t>(i), i % 2 ? Values::normal : Values::integers);
    Workspace workspace(*world, *inputs);
    for (const Mechanism mechanism : mechanisms) {
      if (!make_plan(problem, world->machine(), mechanism)) continue;
      try {
        Operator op(*world, problem, {.mechanism = mechanism, .verify = true, .timeout_us = 5e6});
        workspace.bind(op);
        for (int run = 0; run < 3; ++run) {  // step by step, captured, replayed
          workspace.poison_outputs();
          op.executable().poison();
          op.run();
          const Check checked = check(*inputs, workspace.outputs());
          ASSERT_TRUE(checked.passed)
              << describe(problem) << ' ' << name(mechanism) << " problem " << i << " run " << run
              << ": error " << checked.max_error << " in " << checked.worst;
        }
        ++ran[std::string(name(mechanism))];
      } catch (const Unsupported& reason) {
        ++unserved[reason.what()];
      } catch (const Error& error) {
        FAIL() << describe(problem) << ' ' << name(mechanism) << " problem " << i << ": " << error.what();
      }
    }
  }
  for (const auto& [what, times] : ran) std::printf("%s: %d problems\n", what.c_str(), times);
  for (const auto& [what, times] : unserved) std::printf("unserved %d times: %s\n", times, what.c_str());
}

}  // namespace
}  // namespace shingle::test

#else
TEST(Operators, NeedCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
