// FlashOverlap's shapes (Table 3), and the times of `signal` on them in the simulator.
#pragma once

#include <memory>
#include <vector>

#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"
#include "tune/searched.hpp"

namespace shingle::papers {

constexpr std::int64_t mi = 1 << 20;

/// M·N in Mi elements and K of Table 3, for one kind of GPU.
struct Sizes {
  std::vector<std::int64_t> mn, mn_alltoall, k, k_alltoall;
};
inline const Sizes of_4090{{16, 24, 32, 48, 64}, {4, 16, 32, 68}, {8192, 12288, 16384}, {8192, 16384}};
inline const Sizes of_a800{{64, 128, 256}, {16, 64, 400}, {2048, 4096, 8192}, {4096, 8192}};

inline Problem problem_of(Op op, int world, std::int64_t elements, std::int64_t k) {
  Problem p{.op = op, .world = world, .m = elements / 8192, .n = 8192, .k = k, .dtype = DType::f16};
  if (!p.traits().routes()) return p;
  std::vector<std::int32_t> dest;
  for (std::int64_t row = 0; row < p.m; ++row) dest.push_back(static_cast<std::int32_t>(row % world));
  p.routing = std::make_shared<const Routing>(std::vector(static_cast<std::size_t>(world), dest));
  return p;
}

inline std::vector<Problem> problems(Op op, int world, const Sizes& sizes) {
  const bool routes = op == Op::gemm_alltoall;
  std::vector<Problem> all;
  for (const std::int64_t mn : routes ? sizes.mn_alltoall : sizes.mn)
    for (const std::int64_t k : routes ? sizes.k_alltoall : sizes.k)
      all.push_back(problem_of(op, world, mn * mi, k));
  return all;
}

inline double us(const Problem& problem, const Machine& machine, const std::vector<std::int64_t>& groups) {
  return simulate(plan_signal(problem, machine, {.group_waves = groups}).value(), machine).makespan_us;
}
inline double sequential(const Problem& problem, const Machine& machine) {
  return simulate(plan_sequential(problem, machine).value(), machine).makespan_us;
}
/// As `signal` is by default: groups, and workers for their collectives, by Alg. 1.
inline Plan searched_plan(const Problem& problem, const Machine& machine) {
  return plan_signal(problem, machine, searched_groups(problem, machine, {}).value()).value();
}
inline double searched(const Problem& problem, const Machine& machine) {
  return simulate(searched_plan(problem, machine), machine).makespan_us;
}

}  // namespace shingle::papers
