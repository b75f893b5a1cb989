// Plans whose ranks communicate through collectives and messages, and the places in them that mutations
// break.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "shingle/plan/placement.hpp"
#include "shingle/planner/planner.hpp"
#include "support/mutation.hpp"
#include "support/plan_edit.hpp"
#include "support/random_problem.hpp"

namespace shingle::test {

/// An await that the next one implies: both counts are raised by the same lane, this one first.
inline bool implied(const Plan& plan, const At& at) {
  const auto& lane = lane_of(plan, at).steps;
  const auto* await = std::get_if<Await>(&lane[at.step]);
  const auto* next = at.step + 1 < std::ssize(lane) ? std::get_if<Await>(&lane[at.step + 1]) : nullptr;
  return await && next && await->counter.counter == next->counter.counter;
}

/// True if a collective moves anything on this rank; an empty one needs nobody to wait.
inline bool moves(const Collective& c) {
  return c.send.rows > 0 && c.recv.rows > 0;
}

/// An await whose removal must show: not implied, of a count that grows, and for data that exists.
inline std::optional<At> pick_await(const Plan& plan, Dice& dice) {
  // Where shards are padded to equal parts, an await may be for padding alone.
  if (plan.problem().op == Op::gemm_reducescatter && plan.problem().m % plan.world() != 0)
    return std::nullopt;
  return pick_step(plan, dice, [&](const At& at, const Step& step) {
    const auto* await = std::get_if<Await>(&step);
    if (!await || await->target == 0 || implied(plan, at)) return false;
    for (const Lane& lane : plan.ranks[at.rank].lanes)
      for (const Step& other : lane.steps)
        if (const auto* c = std::get_if<Collective>(&other); c && !moves(*c)) return false;
    return true;
  });
}

inline std::optional<At> pick_collective(const Plan& plan, Dice& dice) {
  return pick_step(plan, dice, [](const At&, const Step& step) {
    const auto* c = std::get_if<Collective>(&step);
    return c && moves(*c);
  });
}

/// A gated step, and a group of it that holds tiles whose data arrives. The first of its lane: those behind
/// it know what it has awaited.
inline std::optional<std::pair<At, std::size_t>> pick_gate(const Plan& plan, Dice& dice) {
  const auto gated = [](const Step& step) {
    const auto* pass = std::get_if<Elementwise>(&step);
    return pass && !pass->gates.empty();
  };
  const auto at = pick_step(plan, dice, [&](const At& a, const Step& step) {
    const auto& lane = lane_of(plan, a).steps;
    return gated(step) && std::find_if(lane.begin(), lane.end(), gated) - lane.begin() ==
                              static_cast<std::ptrdiff_t>(a.step);
  });
  if (!at) return std::nullopt;
  const auto& pass = std::get<Elementwise>(step_of(plan, *at));
  std::vector<std::size_t> groups;
  for (std::int64_t i = 0; i < pass.grid.positions(); ++i) {
    bool data = false;
    if (!pass.grid.phantom(pass.grid.tile(i)))
      for_each_piece(pass.to, pass.grid, plan.routing(), i, [&](const Piece&) { data = true; });
    if (data) groups.push_back(static_cast<std::size_t>(group_of(pass.gates[0].ends, i)));
  }
  if (groups.empty()) return std::nullopt;
  return std::pair{
      *at, groups[static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(groups.size()) - 1))]};
}

/// A pass that the plan needs: it stores something.
inline std::optional<At> pick_pass(const Plan& plan, Dice& dice) {
  return pick_step(plan, dice, [&](const At&, const Step& step) {
    const auto* pass = std::get_if<Elementwise>(&step);
    if (!pass) return false;
    bool stores = false;
    for (std::int64_t i = 0; i < pass->grid.positions(); ++i)
      for_each_piece(pass->to, pass->grid, plan.routing(), i,
                     [&](const Piece& piece) { stores = stores || piece.rows > 0; });
    return stores;
  });
}

inline std::optional<At> pick_gemm(const Plan& plan, Dice& dice) {
  return pick_step(plan, dice, [](const At&, const Step& step) {
    const auto* gemm = std::get_if<Gemm>(&step);
    return gemm && gemm->grid.positions() > 0 && gemm->groups.empty() &&
           gemm->a_rows.run_at(0, 1).matrix_row >= 0;
  });
}

/// A correct plan, of a problem in which every rank has rows to compute and to keep.
inline std::optional<Plan> random_collective_plan(Dice& dice) {
  const Problem p = random_problem(dice, {.world = 6, .m = 60, .n = 40, .k = 12, .experts = false});
  if (p.world == 1) return std::nullopt;
  for (int r = 0; r < p.world; ++r)
    if (p.a_rows(r) == 0 || p.out_rows(r) == 0) return std::nullopt;
  const Machine machine = random_machine(dice);
  const auto all = random_params(dice, p);
  const auto mechanism = one_of(dice, {Mechanism::sequential, Mechanism::chunked, Mechanism::signal,
                                       Mechanism::signal, Mechanism::ring});
  Params params = all[static_cast<std::size_t>(mechanism)];
  if (auto* ring = std::get_if<RingParams>(&params)) ring->engines = 0;  // verify_ring_mutation_test.cpp
  auto plan = plan_with(p, machine, params);
  if (!plan) return std::nullopt;
  return *plan;
}

}  // namespace shingle::test
