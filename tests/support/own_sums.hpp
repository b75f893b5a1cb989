// Plans of `fused` whose owners add the ranks' parts in the epilogue of their own tiles.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "shingle/planner/planner.hpp"

namespace shingle::test {

inline Machine own_sums_machine(int world) {
  Machine machine;
  machine.ranks = world;
  machine.workers = 4;
  machine.tile_rows = 2;
  machine.tile_cols = 4;
  return machine;
}

/// Four rows a rank.
inline Problem own_sums_problem(Op op, int world, bool epilogue = false) {
  Problem p{.op = op, .world = world, .m = 4 * world, .n = 12, .k = 8, .dtype = DType::bf16};
  if (p.traits().chains()) p.inner = 6;
  if (epilogue) p.epilogue = {true, Activation::gelu};
  return p;
}

inline Plan with_own_sums(Op op, int world, bool epilogue = false) {
  return plan_fused(own_sums_problem(op, world, epilogue), own_sums_machine(world),
                    {.sums = SumsIn::epilogue})
      .value();
}

/// The product of a rank whose own tiles are sums.
inline Gemm& summing(Plan& plan, int rank) {
  for (Step& step : plan.ranks[static_cast<std::size_t>(rank)].lanes[0].steps)
    if (auto* gemm = std::get_if<Gemm>(&step); gemm != nullptr && !gemm->sums.from.empty()) return *gemm;
  throw std::logic_error("no product with sums");
}

}  // namespace shingle::test
