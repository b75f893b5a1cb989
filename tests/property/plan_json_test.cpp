// Every plan of every planner is well-formed, round-trips through JSON and can be printed.
#include "shingle/plan/json.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shingle/plan/print.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/wellformed.hpp"

namespace shingle::plan_json_test {
namespace {

std::int32_t in_range(std::int32_t least, std::int32_t most) {
  return *rc::gen::inRange(least, most + 1);
}

Problem any_problem() {
  Problem p;
  p.op = *rc::gen::element(Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm,
                           Op::gemm_alltoall);
  p.world = in_range(1, 16);
  p.m = in_range(1, 300);
  p.n = 2 * in_range(1, 100);
  p.k = in_range(1, 100);
  p.dtype = *rc::gen::element(DType::f32, DType::bf16, DType::f16);
  p.transpose_a = p.op != Op::allgather_gemm && *rc::gen::arbitrary<bool>();
  p.transpose_b = *rc::gen::arbitrary<bool>();
  p.epilogue.bias = *rc::gen::arbitrary<bool>();
  p.epilogue.activation = *rc::gen::element(Activation::none, Activation::relu, Activation::swiglu);
  p.norm.enabled = *rc::gen::arbitrary<bool>();
  p.norm.residual = p.norm.enabled && *rc::gen::arbitrary<bool>();
  p.norm.epsilon = static_cast<float>(in_range(0, 1000)) * 1e-7f;
  if ((p.op == Op::gemm_reducescatter || p.op == Op::allgather_gemm) && *rc::gen::arbitrary<bool>()) {
    p.row_order = RowOrder::block_cyclic;
    p.row_block = in_range(1, 40);
  }
  if (p.op == Op::gemm_alltoall) {
    std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(p.world));
    for (auto& rows : dest)
      rows = *rc::gen::container<std::vector<std::int32_t>>(rc::gen::inRange(0, p.world));
    p.routing = std::make_shared<const Routing>(dest);
    p.m = 0;
    for (int r = 0; r < p.world; ++r) p.m = larger(p.m, p.routing->rows(r));
  }
  return p;
}

Params any_params(Mechanism mechanism) {
  TileOrder order;
  order.raster = *rc::gen::element(Raster::along_m, Raster::along_n);
  order.swizzle = in_range(1, 4);
  order.cluster_m = in_range(1, 3);
  order.cluster_n = in_range(1, 3);
  order.rotation = in_range(0, 5);
  if (mechanism == Mechanism::signal) return SignalParams{.tile = {.order = order}};
  if (mechanism == Mechanism::chunked) return ChunkedParams{.chunks = in_range(0, 9)};
  if (mechanism == Mechanism::ring) return RingParams{.slices = in_range(0, 9)};
  return default_params(mechanism);
}

RC_GTEST_PROP(PlanJson, PlannersWriteWellFormedPlansThatRoundTrip, ()) {
  const Problem problem = any_problem();
  Machine machine;
  machine.workers = in_range(2, 9);
  machine.collective_workers = in_range(0, 1);
  machine.tile_rows = in_range(1, 64);
  machine.tile_cols = in_range(1, 64);
  const auto mechanism =
      *rc::gen::element(Mechanism::sequential, Mechanism::chunked, Mechanism::signal, Mechanism::ring);
  const auto plan = plan_with(problem, machine, any_params(mechanism));
  if (!plan) return;
  RC_TAG(std::string(name(mechanism)));
  RC_LOG() << describe(problem);
  RC_ASSERT(malformed(*plan).value_or("") == "");
  RC_ASSERT(plan_from_json(to_json(*plan)) == *plan);
  RC_ASSERT(plan_from_json(to_json(*plan, -1)) == *plan);
  RC_ASSERT(params_from_json(to_json((*plan).params)) == (*plan).params);
  RC_ASSERT(!to_text(*plan).empty());
  RC_ASSERT(problem_from_json(to_json(problem)) == problem);
  RC_ASSERT(unrouted_problem_from_json(to_json(problem)) == problem);
}

}  // namespace
}  // namespace shingle::plan_json_test
