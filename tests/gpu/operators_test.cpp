// Random problems on GPUs with every mechanism that serves them. Results must be exact if their sums are
// exact, and within error bounds otherwise.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "api/workspace.hpp"
#include "cuda/runtime/devices.hpp"
#include "few_rows.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/json.hpp"
#include "support/random_problem.hpp"

namespace shingle::test {
namespace {

constexpr Mechanism mechanisms[] = {Mechanism::sequential, Mechanism::chunked, Mechanism::signal,
                                    Mechanism::ring};

/// Number of problems for a world; more than 300 in total for worlds of one to four ranks.
/// SHINGLE_GPU_PROBLEMS changes the number.
int problems() {
  const char* set = std::getenv("SHINGLE_GPU_PROBLEMS");
  return set != nullptr ? std::atoi(set) : 85;
}

/// Ragged rows. Columns and depth are multiples of 8, which TMA loads need.
Problem draw_problem(Dice& dice, int world) {
  Problem p;
  p.world = world;
  p.op = one_of(dice, {Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter, Op::gemm_alltoall,
                       Op::allgather_gemm, Op::alltoall_gemm, Op::mlp});
  p.m = chance(dice, 20) ? dice.size(1, 2 * world) : dice.size(1, chance(dice, 30) ? 3000 : 700);
  p.n = 8 * dice.size(1, chance(dice, 30) ? 300 : 80);
  p.k = 8 * dice.size(1, 100);
  p.dtype = one_of(dice, {DType::bf16, DType::f16});
  if (p.traits().chains()) p.inner = 8 * dice.size(1, 60);
  p.transpose_a = !p.traits().gathers() && p.op != Op::gemm_alltoall && chance(dice, 20);
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
  if (p.traits().routes()) {
    p.routing = random_routing(dice, world, p.m);
    p.m = 0;
    for (int rank = 0; rank < world; ++rank) p.m = larger(p.m, p.routing->rows(rank));
  }
  return p;
}

/// Problems for peer memory, and random params of `fused`.
Problem draw_peer_problem(Dice& dice, int world) {
  Problem p = draw_problem(dice, world);
  p.row_order = RowOrder::contiguous, p.row_block = Problem{}.row_block;
  p.op =
      one_of(dice, {Op::gemm_reducescatter, Op::gemm_allreduce, Op::allgather_gemm, Op::gemm_reducescatter,
                    Op::gemm_allreduce, Op::allgather_gemm, Op::gemm_alltoall, Op::alltoall_gemm, Op::mlp});
  p.routing = nullptr;
  if (p.m == 0) p.m = 8;
  if (p.op == Op::allgather_gemm && chance(dice, 20)) {
    p.row_order = RowOrder::block_cyclic;
    p.row_block = dice.size(1, 160);
  }
  if (p.traits().gathers() || p.traits().routes()) p.transpose_a = false;
  if (p.transpose_a) p.m = (p.m + 7) / 8 * 8;
  p.inner = p.traits().chains() ? 8 * dice.size(1, 60) : 0;
  if (p.traits().routes()) {
    p.routing = random_routing(dice, world, p.m);
    p.m = 0;
    for (int rank = 0; rank < world; ++rank) p.m = larger(p.m, p.routing->rows(rank));
  }
  return p;
}

Params draw_peer_params(Dice& dice, const Problem& problem) {
  FusedParams params;
  struct Tile {
    std::int32_t rows, cols;
  };
  const Tile tile = one_of(dice, {Tile{0, 0}, Tile{128, 256}, Tile{128, 128}, Tile{64, 128}, Tile{128, 160},
                                  Tile{128, 192}, Tile{128, 224}});
  params.tile.rows = tile.rows;
  params.tile.cols = problem.epilogue.activation == Activation::swiglu ? tile.cols / 2 : tile.cols;
  if (chance(dice, 50)) {
    params.tile.order.raster = one_of(dice, {Raster::along_n, Raster::along_m});
    params.tile.order.swizzle = static_cast<std::int32_t>(dice.size(1, 4));
    params.tile.order.cluster_m = static_cast<std::int32_t>(dice.size(1, 2));
  }
  if (chance(dice, 50)) params.helpers = static_cast<std::int32_t>(dice.size(1, 24));
  if (params.helpers == 0 && chance(dice, 30)) params.helpers = FusedParams::no_helpers;
  params.stage_fp32 = chance(dice, 30);
  params.one_shot = problem.op == Op::gemm_allreduce && chance(dice, 40);
  if (chance(dice, 50)) params.comm_rows = dice.size(1, problem.m);
  params.pull = chance(dice, 40);
  params.unregistered = chance(dice, 30);
  params.mover = one_of(dice, {Mover::copy_engine, Mover::store});
  params.comm_order = one_of(dice, {CommOrder::ring, CommOrder::reverse, CommOrder::interleaved});
  if (!problem.traits().shards_a() && chance(dice, 20)) params.comm_order = CommOrder::same;
  const bool owners_can_add = problem.traits().reduces() && !params.stage_fp32 && !params.one_shot &&
                              (params.helpers <= 0 || params.unregistered) && problem.world > 1 &&
                              (problem.traits().chains() || problem.m > 256);  // more than one row of tiles
  if (owners_can_add && chance(dice, 50)) params.sums = SumsIn::epilogue;
  return params;
}

/// Problems for messages between neighbours.
Problem draw_ring_problem(Dice& dice, int world) {
  Problem p = draw_peer_problem(dice, world);
  while (p.traits().routes()) p = draw_peer_problem(dice, world);
  return p;
}

Params draw_ring_params(Dice& dice, const Problem&) {
  RingParams params;
  params.engines = static_cast<std::int32_t>(dice.size(0, 2));
  params.slices = static_cast<std::int32_t>(dice.size(1, 5));
  params.comm_workers = one_of(dice, {0, 2, 12});
  return params;
}

/// Problems for copy engines.
Problem draw_engine_problem(Dice& dice, int world) {
  Problem p;
  p.world = world;
  p.op = one_of(dice, {Op::allgather, Op::alltoall, Op::reducescatter, Op::allreduce, Op::allgather_gemm,
                       Op::gemm_alltoall, Op::gemm_reducescatter, Op::gemm_allreduce});
  p.m = dice.size(1, 700);
  p.n = 8 * dice.size(1, 80);
  p.k = p.traits().multiplies() ? 8 * dice.size(1, 60) : p.n;
  p.dtype = one_of(dice, {DType::bf16, DType::f16});
  if (!p.traits().routes()) return p;
  p.routing = random_routing(dice, world, p.m);
  p.m = 0;
  for (int rank = 0; rank < world; ++rank) p.m = larger(p.m, p.routing->rows(rank));
  return p;
}

Params draw_engine_params(Dice& dice, const Problem&) {
  CopyEngineParams params;
  params.variant = one_of(dice, {CopyVariant::automatic, CopyVariant::pcpy, CopyVariant::bcst,
                                 CopyVariant::swap, CopyVariant::b2b, CopyVariant::ring});
  params.trigger = one_of(dice, {EngineTrigger::host, EngineTrigger::direct});
  params.poll = one_of(dice, {PollScope::engine, PollScope::rank, PollScope::collective});
  params.prelaunch = chance(dice, 50);
  return params;
}

Params draw_low_latency_params(Dice& dice, const Problem& problem) {
  const bool everywhere = problem.traits().reduces() && !problem.traits().scatters();
  return LowLatencyParams{.hops = everywhere ? static_cast<std::int32_t>(dice.size(1, 2)) : 1};
}

/// Attention of some sequences, with heads that share K and V or not, or its backward.
Problem draw_attention(Dice& dice, int world, Op op, int longest) {
  Problem p;
  p.world = world;
  p.op = op;
  p.m = chance(dice, 20) ? dice.size(1, 2 * world) : dice.size(1, chance(dice, 30) ? longest : 400);
  p.dtype = one_of(dice, {DType::bf16, DType::f16});
  Attention& attention = p.attention;
  attention.kv_heads = (p.traits().splits_heads() ? world : 1) * dice.size(1, 4);
  attention.heads = attention.kv_heads * dice.size(1, 4);
  attention.head_dim = one_of(dice, {64, 64, 128, 128, 72, 96, 256});
  attention.causal = chance(dice, 60);
  attention.returns_lse = op == Op::allgather_attention && chance(dice, 50);
  for (std::int64_t left = p.m; chance(dice, 50) && left > 0;) {
    attention.lengths.push_back(chance(dice, 20) ? left : dice.size(1, left));
    left -= attention.lengths.back();
    if (chance(dice, 30) && left >= attention.lengths.back()) {
      attention.lengths.push_back(attention.lengths.back());  // sequences of one length
      left -= attention.lengths.back();
    }
    if (left > 0 && attention.lengths.size() >= 6) attention.lengths.push_back(std::exchange(left, 0));
  }
  p.m = attention.lengths.empty() ? p.m
                                  : std::accumulate(attention.lengths.begin(), attention.lengths.end(), 0L);
  p.k = attention.heads * attention.head_dim / (p.traits().shards_tokens() ? 1 : world);
  p.n = p.traits().multiplies() ? 8 * dice.size(1, 80) : p.k;
  if (p.traits().shards_tokens() && !p.traits().splits_heads() && chance(dice, 50))
    p.row_order = RowOrder::zigzag;
  if (p.traits().multiplies()) {
    p.transpose_b = chance(dice, 60);
    p.epilogue.bias = chance(dice, 30);
    if (chance(dice, 30)) p.norm = {true, chance(dice, 50)};
  }
  return p;
}

Problem draw_forward(Dice& dice, int world) {
  const Op op = one_of(dice, {Op::attention_reducescatter, Op::ulysses_attention, Op::allgather_attention});
  return draw_attention(dice, world, op, 1500);
}

Problem draw_backward(Dice& dice, int world) {
  return draw_attention(dice, world, Op::attention_backward, 700);
}

Params draw_attention_params(Dice& dice, const Problem& problem) {
  if (chance(dice, 30)) return SequentialParams{};
  if (problem.traits().multiplies() && problem.world > 1 && chance(dice, 30))
    return FusedParams{.stage_fp32 = chance(dice, 30), .unregistered = chance(dice, 30)};
  RingParams params;
  params.slices = static_cast<std::int32_t>(dice.size(1, 5));
  params.row_parallel = problem.traits().multiplies() && chance(dice, 40);
  params.engines = problem.world > 1 && chance(dice, 40) ? static_cast<std::int32_t>(dice.size(1, 3)) : 0;
  if (params.engines == 0 && problem.traits().shards_tokens() && chance(dice, 60))
    params.mover = Mover::store;
  params.unregistered = chance(dice, 30);
  params.comm_workers = one_of(dice, {0, 2, 12});
  return params;
}

/// Mixtures of experts, some of each rank or slices of each expert, of any routing.
Problem draw_experts(Dice& dice, int world) {
  Problem p;
  p.world = world;
  p.op = one_of(dice,
                {Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::moe, Op::allgather_grouped_gemm,
                 Op::grouped_gemm_reducescatter, Op::moe_tp, Op::grouped_gemm_allreduce, Op::moe_allreduce});
  p.n = 8 * dice.size(1, chance(dice, 30) ? 300 : 80);
  p.k = 8 * dice.size(1, 100);
  p.dtype = one_of(dice, {DType::bf16, DType::f16});
  p.transpose_b = chance(dice, 60);
  if (p.traits().chains()) p.inner = 8 * dice.size(1, 60);
  if (p.traits().takes_tokens())
    p.epilogue.activation = one_of(dice, {Activation::none, Activation::silu, Activation::swiglu});
  if (!p.traits().chains() && p.epilogue.activation == Activation::swiglu) p.n *= 2;
  route(dice, p, chance(dice, 30) ? 3000 : 400);
  return p;
}

Params draw_expert_params(Dice& dice, const Problem& problem) {
  if (chance(dice, 30)) return SequentialParams{};
  const bool replicated = problem.traits().replicates_tokens();
  if (!replicated && chance(dice, 40))
    return ChunkedParams{.comm_workers = one_of(dice, {0, 2, 12}),
                         .chunks = static_cast<std::int32_t>(dice.size(0, 8))};
  if (chance(dice, 40)) {
    SignalParams params{.comm_workers = one_of(dice, {0, 2, 12})};
    for (std::size_t groups = dice.size(0, 8); groups > 0; --groups)
      params.group_waves.push_back(dice.size(1, 4));
    if (problem.traits().slices_experts() && chance(dice, 60))
      params.helpers =
          chance(dice, 30) ? FusedParams::no_helpers : static_cast<std::int32_t>(dice.size(1, 24));
    return params;
  }
  FusedParams params;
  params.stage_fp32 = chance(dice, 30);
  params.mover = one_of(dice, {Mover::copy_engine, Mover::store});
  if (problem.epilogue.activation != Activation::swiglu && chance(dice, 50))
    params.tile.rows = one_of(dice, {64, 128}), params.tile.cols = 128;
  if (chance(dice, 50)) params.helpers = static_cast<std::int32_t>(dice.size(1, 24));
  if (params.mover == Mover::store && chance(dice, 30)) params.helpers = FusedParams::no_helpers;
  params.unregistered = chance(dice, 30);
  params.one_shot = replicated && chance(dice, 50);
  return params;
}

/// The same with a capacity, which some choices may not find room in.
Problem draw_slots(Dice& dice, int world) {
  Problem p = draw_experts(dice, world);
  give_capacity(dice, p, chance(dice, 30) ? 1500 : 300);
  return p;
}

/// The elements of the outputs.
std::vector<std::vector<char>> bits_of(const Problem& problem, const std::vector<Output>& outputs) {
  std::vector<std::vector<char>> bits;
  for (const Output& output : outputs) {
    const Shape shape = shape_of(problem, output.role, output.rank);
    const auto* const at = static_cast<const char*>(output.memory);
    bits.emplace_back(at,
                      at + shape.rows * shape.cols * static_cast<std::int64_t>(size_bytes(problem.dtype)));
  }
  return bits;
}

class Operators : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda::count_gpus(why) < GetParam()) GTEST_SKIP() << GetParam() << " GPUs are needed: " << why;
    world = make_world(GetParam(), {.backend = "cuda"});
  }
  void TearDown() override {
    for (const auto& [what, times] : ran) std::printf("%s: %d problems\n", what.c_str(), times);
    for (const auto& [what, times] : unserved) std::printf("unserved %d times: %s\n", times, what.c_str());
  }

  /// Runs the problem if the backend serves it: step by step, captured, replayed. Checks each result.
  void expect_right(const Problem& problem, const Inputs& inputs, Workspace& workspace, const Params& params,
                    const std::string& number) {
    const Mechanism mechanism = mechanism_of(params);
    const std::string what = describe(problem) + ' ' + std::string(name(mechanism)) + " problem " + number;
    const Result<Plan> plan = make_plan(problem, world->machine(), params);
    if (!plan) {
      if (params != default_params(mechanism)) ++unserved[plan.reason()];
      return;
    }
    try {
      Operator op(*world, problem, {.params = params, .verify = true, .timeout_us = 5e6});
      workspace.bind(op);
      std::vector<std::vector<char>> first;
      for (int run = 0; run < 3; ++run) {
        workspace.poison_outputs();
        op.executable().poison();
        op.run();
        const Check checked = check(inputs, workspace.outputs());
        ASSERT_TRUE(checked.passed) << what << " run " << run << ": error " << checked.max_error << " in "
                                    << checked.worst << '\n'
                                    << to_json(plan->params);
        if (!problem.traits().backward) continue;
        const std::vector<std::vector<char>> bits = bits_of(problem, workspace.outputs());
        if (run == 0) first = bits;
        ASSERT_EQ(bits, first) << what << " run " << run << '\n' << to_json(plan->params);
      }
      ++ran[std::string(name(problem.op)) + ' ' + std::string(name(mechanism))];
    } catch (const Unsupported& reason) {
      ++unserved[reason.what()];
    } catch (const Error& error) {
      FAIL() << what << ": " << error.what() << '\n' << to_json(plan->params);
    }
  }

  /// Tests random problems with random params of one mechanism.
  void expect_random(int seed, Problem (*draw)(Dice&, int), Params (*draw_params)(Dice&, const Problem&)) {
    Dice dice(static_cast<std::uint64_t>(seed + GetParam()));
    for (int i = 0; i < problems() && !HasFatalFailure(); ++i) {
      const Problem problem = draw(dice, GetParam());
      if (problem.m == 0) continue;
      const Params params = draw_params(dice, problem);
      const auto inputs =
          random_inputs(problem, static_cast<std::uint64_t>(i), i % 2 ? Values::normal : Values::integers);
      Workspace workspace(*world, *inputs);
      expect_right(problem, *inputs, workspace, params, std::to_string(i));
    }
  }

  std::unique_ptr<World> world;
  std::map<std::string, int> ran, unserved;
};
INSTANTIATE_TEST_SUITE_P(Worlds, Operators, testing::Values(1, 2, 3, 4, 8),
                         testing::PrintToStringParamName());

TEST_P(Operators, RandomProblemsAreRight) {
  Dice dice(static_cast<std::uint64_t>(GetParam()));
  for (int i = 0; i < problems() && !HasFatalFailure(); ++i) {
    const Problem problem = draw_problem(dice, GetParam());
    if (problem.m == 0) continue;
    const auto inputs =
        random_inputs(problem, static_cast<std::uint64_t>(i), i % 2 ? Values::normal : Values::integers);
    Workspace workspace(*world, *inputs);
    for (const Mechanism mechanism : mechanisms) {
      expect_right(problem, *inputs, workspace, default_params(mechanism), std::to_string(i));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Operators, RandomRingProblemsAreRight) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank has no neighbours";
  expect_random(300, draw_ring_problem, draw_ring_params);
}

TEST_P(Operators, RandomAttentionsAreRight) {
  expect_random(500, draw_forward, draw_attention_params);
}

TEST_P(Operators, RandomExpertsWithACapacityAreRight) {
  expect_random(700, draw_slots, draw_expert_params);
}

/// Each run gives the same bits.
TEST_P(Operators, RandomBackwardsOfAttentionAreRight) {
  expect_random(600, draw_backward, draw_attention_params);
}

/// More scores than one backward of cuDNN takes, and sequences of one token, which cuDNN does not take.
TEST_P(Operators, BackwardsOfLongAndSingleTokensAreRight) {
  Problem p;
  p.op = Op::attention_backward;
  p.world = GetParam();
  p.dtype = DType::bf16;
  p.attention = {.heads = 6, .kv_heads = 3, .head_dim = 64, .causal = true, .lengths = {1, 1, 1, 12000, 1}};
  p.m = 12004;
  p.n = p.k = 6 * 64;
  const auto inputs = random_inputs(p, 1, Values::normal);
  const RowSample sample(*inputs, world->local_ranks());
  Workspace workspace(*world, *inputs);
  try {
    for (const Params& params : {Params{SequentialParams{}}, Params{RingParams{}}}) {
      Operator op(*world, p, {.params = params});
      workspace.bind(op);
      workspace.poison_outputs();
      op.run();
      const Check checked = workspace.check(sample);
      EXPECT_TRUE(checked.passed) << "error " << checked.max_error << " in " << checked.worst;
    }
  } catch (const Unsupported& reason) {
    GTEST_SKIP() << reason.what();
  }
}

TEST_P(Operators, RandomExpertsAreRight) {
  if (!world->capabilities().remote_memory) GTEST_SKIP() << "these GPUs do not reach each other's memory";
  expect_random(600, draw_experts, draw_expert_params);
}

TEST_P(Operators, RandomFusedProblemsAreRight) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank has no peers";
  if (!world->capabilities().remote_memory) GTEST_SKIP() << "these GPUs do not reach each other's memory";
  expect_random(100, draw_peer_problem, draw_peer_params);
}

TEST_P(Operators, RandomCopyEngineProblemsAreRight) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank has no peers";
  if (!world->capabilities().remote_memory) GTEST_SKIP() << "these GPUs do not reach each other's memory";
  expect_random(200, draw_engine_problem, draw_engine_params);
}

TEST_P(Operators, RandomProblemsOfFewRowsAreRight) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank has no peers";
  if (!world->capabilities().remote_memory) GTEST_SKIP() << "these GPUs do not reach each other's memory";
  expect_random(400, draw_few_rows, draw_low_latency_params);
}

}  // namespace
}  // namespace shingle::test

#else
TEST(Operators, NeedCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
