// The staging memory of a context for a model: the largest need of one operator, not the sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "plan/arena_layout.hpp"
#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "shingle/host/host.hpp"
#include "shingle/machine/profile.hpp"
#include "support/ring_attention.hpp"

namespace shingle::context_arena_test {
namespace {

/// Operators of a Llama-3 70B layer on each of `ranks` ranks: hidden 8192, 64 + 16 heads of 128, inner 28672.
std::vector<Problem> llama_3_70b(int ranks, std::int64_t max_m) {
  const Problem base{
      .world = ranks, .m = max_m, .n = 8192, .k = 8192, .dtype = DType::bf16, .transpose_b = true};
  Problem qkv = base, out = base, up = base, down = base, summed = base, mlp = base;
  qkv.op = up.op = Op::allgather_gemm;
  out.op = down.op = Op::gemm_reducescatter;
  summed.op = Op::gemm_allreduce;
  mlp.op = Op::mlp;
  qkv.n = (8192 + 2 * 1024) / ranks;
  out.k = summed.k = 8192 / ranks;
  up.n = 2 * 28672 / ranks;
  down.k = 28672 / ranks;
  mlp.inner = 28672 / ranks;
  mlp.epilogue.activation = Activation::swiglu;
  return {qkv, out, up, down, summed, mlp};
}

TEST(ContextArena, ServesLlama3With70BParametersIn1200MiB) {
  Machine machine;
  machine.workers = 132;
  machine.tile_rows = 128;
  machine.tile_cols = 256;
  machine.collective_workers = 16;
  for (const int ranks : {2, 8}) {
    std::int64_t most = 0;
    for (const Problem& problem : llama_3_70b(ranks, 16384)) {
      const std::int64_t bytes = arena_bytes_needed(problem, machine);
      std::printf("[ ARENA    ] %s: %s\n", describe(problem).c_str(),
                  format_bytes(static_cast<double>(bytes)).c_str());
      most = std::max(most, bytes);
    }
    EXPECT_GT(most, std::int64_t{16384} * 8192 * 2) << "no less than the output of one product";
    EXPECT_LE(static_cast<double>(most), 1.2 * (1 << 30));
  }
}

/// A capacity that no routing exceeds: as many rows as a rank has tokens.
TEST(ContextArena, SaysWhatExpertsNeedWhereNoChoiceIsDropped) {
  struct Model {
    const char* name;
    std::int64_t hidden, inner;
    Experts experts;
  };
  const Machine machine = machine_from_spec("h200x8");
  constexpr std::int64_t tokens = 4096;
  for (const Model& model : {Model{"mixtral-8x7b", 4096, 14336, {8, 2, tokens}},
                             Model{"deepseek-moe-16b", 2048, 1408, {64, 6, tokens}}}) {
    Problem problem{.op = Op::moe,
                    .world = 2,
                    .n = model.hidden,
                    .k = model.hidden,
                    .dtype = DType::bf16,
                    .transpose_b = true};
    problem.inner = model.inner, problem.epilogue.activation = Activation::swiglu;
    problem.experts = model.experts;
    const Problem full = with_m(problem, tokens);
    const std::int64_t bytes = arena_bytes_needed(full, machine);
    std::printf("[ ARENA    ] %s, %d GPUs, capacity %d: %s\n", model.name, full.world, full.experts.capacity,
                format_bytes(static_cast<double>(bytes)).c_str());
    // Every slot of the rank's experts: its token, and its activated first product.
    const std::int64_t slots = full.experts.count * tokens;
    EXPECT_GE(bytes, 2 * slots * (model.hidden + model.inner));
    // Beside these, tokens and products may lie there once more for the way there and back.
    EXPECT_LE(bytes, 2 * slots * (5 * model.hidden + 2 * model.inner));
  }
}

TEST(ContextArena, HasTheLargestNeedOfItsOperators) {
  const auto world = make_world(2, {.backend = "host"});
  Context context(*world);
  EXPECT_EQ(context.arena_bytes(), 0);
  std::int64_t most = 0;
  for (const std::int64_t m : {64, 512, 128}) {
    Problem problem{.op = Op::gemm_reducescatter, .world = 2, .m = m, .n = 96, .k = 32};
    context.declare(problem);
    most = std::max(most, arena_bytes_needed(problem, world->machine()));
    EXPECT_EQ(context.arena_bytes(), most);
  }
  Context ample(*world, {.arena_bytes = 1 << 22});
  ample.declare({.op = Op::gemm_reducescatter, .world = 2, .m = 64, .n = 96, .k = 32});
  EXPECT_EQ(ample.arena_bytes(), 1 << 22);
}

TEST(Context, PlansAnOperatorForFewerWorkersIfItAsks) {
  const auto world = make_thread_world(2, {.workers_per_rank = 4});
  Context context(*world, {.workers = 3});
  const Problem problem{.op = Op::gemm_reducescatter, .world = 2, .m = 64, .n = 96, .k = 32};
  EXPECT_EQ(context.plan(context.declare(problem), 64).workers, 3);
  EXPECT_EQ(context.plan(context.declare(problem, {.workers = 2}), 64).workers, 2);
  EXPECT_THROW(context.declare(problem, {.workers = 4}), InvalidArgument) << "more than the context has";
}

/// The arena of an operator is planned for one sequence of m tokens. The sequential plan, which serves what
/// the chosen one does not, must fit it for any other lengths.
TEST(ContextArena, ServesAttentionToSequencesOfAnyLengths) {
  test::AttentionDraw draw(7);
  const Machine machine;
  for (int i = 0; i < 300; ++i) {
    const int world = static_cast<int>(draw(1, 5));
    const Op op = draw(0, 1) == 1 ? Op::allgather_attention : Op::attention_backward;
    Problem packed = draw.problem(op, world, 6, 40), one = packed;
    one.attention.lengths.clear();
    const auto bytes_of = [&](const Problem& problem) {
      return arena_layout(make_plan(problem, machine, SequentialParams{}).value()).bytes;
    };
    EXPECT_LE(bytes_of(packed), bytes_of(one)) << describe(packed);
  }
}

TEST(ContextArena, DeclaresAttentionWithoutLengths) {
  const Problem packed =
      test::ring_attention(2, 8, {.heads = 1, .kv_heads = 1, .head_dim = 4, .lengths = {3, 5}});
  try {
    arena_bytes_needed(packed, Machine{});
    FAIL() << "lengths were declared";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("declared without lengths of sequences: each call gives"));
  }
}

}  // namespace
}  // namespace shingle::context_arena_test
