// Plans for the tests of JSON, printing and well-formedness.
#pragma once

#include <memory>
#include <vector>

#include "shingle/plan/plan.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::test {

/// By hand, well-formed, with every kind of step, placement and hook and hardly a field at its default. It
/// computes nothing sensible.
inline Plan all_steps() {
  Plan plan;
  Problem& p = plan.problem();
  p.op = Op::gemm_alltoall;
  p.world = 2;
  p.m = 8, p.n = 4, p.k = 6;
  p.dtype = DType::bf16;
  p.transpose_a = p.transpose_b = true;
  p.epilogue = {true, Activation::silu};
  p.norm = {true, true, 1e-6f};
  p.routing = std::make_shared<const Routing>(std::vector<std::vector<std::int32_t>>{
      {0, 1, 1, 0, 1, 1, 0, 1}, {0, 0, 0, 0, 0}});  // rank 0 gets 3 + 5 rows
  plan.mechanism = Mechanism::signal;
  plan.params = list_of(SignalParams{.tile = {4, 2, {Raster::along_m, 2, 1, 2, 1}},
                                     .comm_workers = 1,
                                     .group_waves = {1, 2},
                                     .symmetric = true});
  plan.workers = 4;
  plan.rounding = "nowhere";
  plan.buffers = {{"a", Role::a, DType::bf16, {6, 6}, 8},
                  {"b", Role::b, DType::bf16, {4, 4}, 6},
                  {"bias", Role::bias, DType::bf16, {1, 1}, 4},
                  {"residual", Role::residual, DType::bf16, {8, 5}, 4},
                  {"norm_weight", Role::norm_weight, DType::bf16, {1, 1}, 4},
                  {"out", Role::out, DType::bf16, {8, 5}, 4},
                  {"sum", Role::sum, DType::bf16, {8, 5}, 4},
                  {"staging", Role::internal, DType::bf16, {24, 24}, 4, 2},
                  {"partial", Role::internal, DType::f32, {16, 17}, 4}};
  plan.counters = {{"done", CounterKind::add, {{3, 1}, {4, 0}}}, {"flag", CounterKind::set, {{2}, {2}}}};
  plan.communicators = {{"world", {1, 0}}, {"alone", {0}}};
  plan.ranks.resize(2);

  // Tiles of 4x2: two by two, along m first, starting at the second column.
  TileGrid grid{8, 4, 4, 2, {{Axis::n, 2, 1}, {Axis::m, 2, 0}}, 2};
  Gemm gemm;
  gemm.grid = grid;
  gemm.a = {0, 0, 0, 6, 0, 8};
  gemm.b = {1, 0, 0, 4, 0, 6};
  gemm.a_rows = {2, 2, 4, 4, 0, 8};
  gemm.transpose_a = gemm.transpose_b = true;
  gemm.epilogue = {true, Activation::relu};
  gemm.bias = {2, 0, 0, 1, 0, 4};
  gemm.out = {{7, 0, 4, 16, 2, 2}, placement::Subtiles{{1, 4}, 2}};
  gemm.gates = {{0, {4}, {1}}};
  gemm.notify = {{0, {1, 0}, {1, 4}}};
  gemm.resources = {2, 3};

  Elementwise reduce;
  reduce.grid = grid;
  reduce.first = 1;
  reduce.count = 2;
  reduce.from = {{{7, 1, 0, 16, 0, 2}, placement::Slots{}},
                 {{8, 1, 0, 16, 0, 4}, placement::Matrix{{1, 3, 9, 0, 7, 15}}},
                 {{7, 0, 0, 24, 0, 4}, placement::Pools{{2, 4}, 0, -1, {0, 3, 8, 11}}}};
  reduce.to = {{8, 1, 0, 8, 0, 4}, placement::Matrix{RowMap::identity(8)}};
  reduce.gates = {{0, {1, 4}, {1, 0}}};
  reduce.resources = {0, 1};

  Elementwise norm;
  norm.grid = {5, 4, 5, 2, {{Axis::n, 2, 0}}, 1};
  norm.from = {{{7, 0, 0, 24, 0, 2}, placement::Pools{{2}, 1, 0, {14}}}};
  norm.to = {{5, 0, 0, 8, 0, 4}, placement::Routed{1, 0, {3}}};
  norm.norm = {true, true, 1e-6f};
  norm.norm_weight = {4, 0, 0, 1, 0, 4};
  norm.residual = norm.sum = norm.to;
  norm.residual.slice.buffer = 3;
  norm.sum.slice.buffer = 6;

  const Slice staging{7, 0, 0, 8, 0, 4};
  Collective allreduce{CollectiveKind::allreduce, 0, staging, staging, {}, {}, {1, 1}};
  Collective scatter{CollectiveKind::reducescatter, 0, staging, {7, 0, 8, 4, 0, 4}, {}, {}, {}};
  Collective gather{CollectiveKind::allgather, 1, {7, 0, 8, 4, 0, 4}, {7, 0, 0, 4, 0, 4}, {}, {}, {}};
  Collective alltoall{CollectiveKind::alltoall, 0, staging, {7, 0, 12, 9, 0, 4}, {5, 3}, {2, 7}, {}};
  Exchange exchange{
      0, {{1, staging}, {0, staging}}, {{1, {7, 0, 8, 2, 0, 4}}, {0, {7, 0, 16, 8, 0, 4}}}, {1, 2}};

  plan.ranks[0].lanes = {
      {LaneKind::compute, "compute", {Fill{{8, 0, 1, 2, 3, 1}}, gemm, norm}},
      {LaneKind::communicate, "wire", {Await{{0, 0, 1}, 1}, allreduce, scatter, gather, alltoall, exchange}},
      {LaneKind::copy,
       "engine",
       {Copy{{7, 0, 0, 2, 1, 2}, {7, 1, 4, 2, 0, 2}},
        Broadcast{staging, {{7, 1, 0, 8, 0, 4}, {7, 0, 8, 8, 0, 4}}},
        Swap{{7, 0, 0, 2, 0, 4}, {7, 1, 0, 2, 0, 4}}, Notify{{1, 1, 0}, 2}}}};
  plan.ranks[0].issue = {0, 0, 1, 1, 1, 1, 1, 1, 0, 2, 2, 2, 2};
  plan.ranks[1].lanes = {{LaneKind::compute, "compute", {reduce}}};
  plan.ranks[1].issue = {0};
  return plan;
}

/// A plan of each planner for each operator that it serves; small, with what makes plans long.
inline std::vector<Plan> planned(int world = 3, std::int64_t m = 100) {
  Machine machine;
  machine.workers = 4;
  machine.collective_workers = 1;
  machine.tile_rows = machine.tile_cols = 16;
  std::vector<Plan> plans;
  for (const Op op : {Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm,
                      Op::gemm_alltoall, Op::alltoall_gemm, Op::allgather, Op::alltoall, Op::allreduce}) {
    Problem p;
    p.op = op;
    p.world = world;
    p.m = m, p.n = 64, p.k = 24;
    if (!p.traits().is_collective()) {
      p.epilogue = {true, Activation::swiglu};
      p.norm = {true, true};
    } else {
      p.k = p.n;
    }
    if (p.traits().routes()) {
      std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
      for (int s = 0; s < world; ++s)
        for (std::int64_t row = 0; row < m / (s + 1); ++row)
          dest[static_cast<std::size_t>(s)].push_back(static_cast<std::int32_t>(row * row / 7 % world));
      p.routing = std::make_shared<const Routing>(std::move(dest));
    }
    for (const Mechanism mechanism : {Mechanism::sequential, Mechanism::chunked, Mechanism::signal,
                                      Mechanism::ring, Mechanism::fused, Mechanism::copy_engine})
      if (auto plan = plan_with(p, machine, default_params(mechanism))) plans.push_back(std::move(*plan));
  }
  return plans;
}

}  // namespace shingle::test
