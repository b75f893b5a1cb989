// Plans of a few experts on three ranks, for tests to damage.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "shingle/planner/planner.hpp"

namespace shingle::test {

/// Three ranks with two experts each, or a slice of all six. Every token of 8 goes to two of them, and every
/// rank to every expert.
inline Problem experts(Op op) {
  Problem problem{.op = op, .world = 3, .m = 8, .n = 12, .k = 10};
  problem.experts = {6, 2};
  if (problem.traits().chains()) problem.inner = 14;
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(problem.sources()));
  for (std::size_t rank = 0; rank < dest.size(); ++rank)
    for (int choice = 0; choice < 2; ++choice)
      for (std::int32_t token = 0; token < 8; ++token)
        dest[rank].push_back((token * 5 + choice + static_cast<std::int32_t>(rank)) % 6);
  problem.routing = std::make_shared<const Routing>(
      Routing::to_experts(std::move(dest), 6, problem.traits().expert_split()));
  return problem;
}

/// Tensor-parallel experts by `fused`, with helpers if `machine` has workers for them.
inline std::vector<Plan> sliced(Op op, const Machine& machine = {}) {
  return {
      plan_fused(experts(op), machine, {.mover = Mover::copy_engine}).value(),
      plan_fused(experts(op), machine, {.mover = Mover::store}).value(),
      plan_fused(experts(op), machine, {.helpers = FusedParams::no_helpers, .mover = Mover::store}).value()};
}

/// The same by `chunked`, in a chunk for each rank. Tiles are so low that each chunk has some.
inline Plan in_chunks(Op op) {
  Machine machine;
  machine.tile_rows = 1;
  return plan_chunked(experts(op), machine, {.chunks = 3}).value();
}

/// The same by `signal`: with helpers, in groups that have tokens of one rank or of two, and without.
inline std::vector<Plan> by_signal(Op op) {
  Machine machine;
  machine.tile_rows = 1;
  machine.workers = 8, machine.collective_workers = 1;
  return {plan_signal(experts(op), machine, {.group_waves = {3, 2, 1, 3}, .helpers = 2}).value(),
          plan_signal(experts(op), machine, {.helpers = FusedParams::no_helpers}).value()};
}

inline Machine with_helpers() {
  Machine machine;
  machine.workers = 64;
  return machine;
}

}  // namespace shingle::test
