// Any problem, any mechanism, any partition: the plan is proven, integer inputs come out exact and random
// ones within tolerance.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <cstdlib>
#include <map>

#include "shingle/api/routing_patterns.hpp"
#include "shingle/api/workspace.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/plan/verify.hpp"

namespace shingle {
namespace {

std::int64_t size(std::int64_t least, std::int64_t most) {
  return *rc::gen::inRange(least, most + 1);
}
bool chance(int percent) {
  return *rc::gen::inRange(0, 100) < percent;
}

std::shared_ptr<const Routing> any_routing(int world, std::int64_t most_rows) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < world; ++rank) rows.push_back(chance(15) ? 0 : size(1, most_rows));
  const auto pattern =
      *rc::gen::element(RoutingPattern::random, RoutingPattern::balanced, RoutingPattern::skewed,
                        RoutingPattern::all_to_one, RoutingPattern::empty_rank);
  const bool possible = pattern != RoutingPattern::empty_rank || world > 1;
  return std::make_shared<Routing>(make_routing(possible ? pattern : RoutingPattern::random, world, rows,
                                                static_cast<std::uint64_t>(size(0, 1000))));
}

Problem any_problem() {
  Problem p;
  p.op = *rc::gen::element(Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm,
                           Op::gemm_alltoall);
  p.world = static_cast<int>(size(1, 6));
  p.m = chance(20) ? size(1, 8) : size(1, 150);
  p.n = size(1, 120);
  p.k = size(1, 80);
  p.dtype = *rc::gen::element(DType::f32, DType::f32, DType::bf16, DType::f16);
  // A transposed A is not to be had row by row.
  p.transpose_a = p.op != Op::allgather_gemm && p.op != Op::gemm_alltoall && chance(30);
  p.transpose_b = chance(30);
  if (chance(40)) {
    p.epilogue.bias = chance(50);
    p.epilogue.activation = *rc::gen::element(Activation::none, Activation::relu, Activation::gelu,
                                              Activation::silu, Activation::swiglu);
    if (p.epilogue.activation == Activation::swiglu) p.n *= 2;
  }
  if (chance(30)) {
    p.norm.enabled = true;
    p.norm.residual = chance(50);
    p.n += 32;  // the mean square of a few elements can be as small as one likes
    if (p.epilogue.activation == Activation::swiglu) p.n += p.n % 2;
  }
  if ((p.op == Op::gemm_reducescatter || p.op == Op::allgather_gemm) && chance(40)) {
    p.row_order = RowOrder::block_cyclic;
    p.row_block = size(1, 20);
  }
  if (p.op == Op::gemm_alltoall) {
    p.routing = any_routing(p.world, p.m);
    p.m = 0;
    for (int rank = 0; rank < p.world; ++rank) p.m = larger(p.m, p.routing->rows(rank));
  }
  return p;
}

Params any_params() {
  Params params;
  if (chance(70)) {
    params.tile_rows = static_cast<std::int32_t>(size(1, 48));
    params.tile_cols = static_cast<std::int32_t>(size(1, 48));
  }
  params.order.raster = *rc::gen::element(Raster::along_n, Raster::along_m);
  params.order.swizzle = static_cast<std::int32_t>(size(1, 4));
  params.order.cluster_m = static_cast<std::int32_t>(size(1, 2));
  params.order.cluster_n = static_cast<std::int32_t>(size(1, 2));
  params.order.rotation = static_cast<std::int32_t>(size(0, 5));
  if (chance(60)) params.chunks = static_cast<std::int32_t>(size(1, 7));
  return params;
}

/// Cuts the waves of a signal plan, which come in the planner's own groups, into groups at random.
void regroup(Params& params, const Plan& plan) {
  std::int64_t waves = 0;
  for (const std::int64_t group : plan.params.group_waves) waves += group;
  params.group_waves.clear();
  while (waves > 0) {
    params.group_waves.push_back(size(1, std::min<std::int64_t>(waves, 9)));
    waves -= params.group_waves.back();
  }
}

World& world_of(int ranks) {
  static std::map<int, std::unique_ptr<World>> worlds;
  auto& world = worlds[ranks];
  if (!world) world = make_world(ranks, {.backend = "host", .workers_per_rank = 2});
  return *world;
}

void expect_right(World& world, const Problem& problem, const Options& options, Values values) {
  const auto inputs = random_inputs(problem, static_cast<std::uint64_t>(size(0, 1 << 20)), values);
  Workspace memory(world, *inputs);
  Operator op(world, problem, options);
  memory.bind(op);
  memory.poison_outputs();
  op.executable().poison();
  op.run(chance(20) ? 2 : 1);
  const Check result = check(*inputs, memory.outputs());
  if (!result.passed)
    RC_FAIL(describe(problem) + ": error " + std::to_string(result.max_error) + " above " +
            std::to_string(result.tolerance) + " at " + result.worst + "\n" + to_text(op.plan()));
}

/// Every mechanism that has a plan for a random problem.
void try_one() {
  const Problem problem = any_problem();
  problem.validate();
  World& world = world_of(problem.world);
  for (const PlannerEntry& entry : planners()) {
    Params params = any_params();
    Result<Plan> plan = make_plan(problem, world.machine(), entry.mechanism, params);
    if (plan && entry.mechanism == Mechanism::signal) {
      if (chance(60)) regroup(params, *plan);
      plan = make_plan(problem, world.machine(), entry.mechanism, params);
      RC_ASSERT(plan.has_value());
    }
    if (entry.mechanism == Mechanism::sequential && !plan)
      RC_FAIL("the baseline must serve all: " + plan.reason());
    if (!plan) continue;
    const Proof proof = verify(*plan);
    if (!proof) RC_FAIL(describe(problem) + ": " + proof.rule + ": " + proof.failure + "\n" + to_text(*plan));
    const Options options{.mechanism = entry.mechanism, .params = params};
    expect_right(world, problem, options, chance(50) ? Values::integers : Values::normal);
  }
}

TEST(EndToEnd, EveryMechanismIsProvenAndRight) {
  // Many, but bounded in time, because machines (and sanitizers) differ; RC_PARAMS can ask for more.
  setenv("RC_PARAMS", "max_success=1500", 0);
  constexpr auto budget = std::chrono::seconds(40);
  const auto start = std::chrono::steady_clock::now();
  int tried = 0;
  const bool right = rc::check([&] {
    if (std::chrono::steady_clock::now() - start > budget) return;
    try_one();
    ++tried;
  });
  RecordProperty("problems", tried);
  EXPECT_TRUE(right);
  EXPECT_GT(tried, 10);
}

}  // namespace
}  // namespace shingle
