// Small problems and machines for plans of `fused`, and what these plans have.
#pragma once

#include <stdexcept>

#include "shingle/planner/planner.hpp"

namespace shingle::test::fused {

inline Problem problem(Op op, int world, std::int64_t m) {
  return {.op = op, .world = world, .m = m, .n = 96, .k = 40};
}

inline Machine machine(int workers) {
  Machine machine;
  machine.workers = workers;
  machine.tile_rows = 16;
  machine.tile_cols = 32;
  return machine;
}

inline FusedParams chosen(const Plan& plan) {
  return std::get<FusedParams>(params_of(plan));
}

inline const Gemm& gemm_of(const Plan& plan, int rank) {
  for (const Step& step : plan.ranks[static_cast<std::size_t>(rank)].lanes[0].steps)
    if (const auto* gemm = std::get_if<Gemm>(&step)) return *gemm;
  throw std::logic_error("no GEMM on lane 0");
}

}  // namespace shingle::test::fused
