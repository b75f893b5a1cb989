// Plans whose ranks use each other's memory, broken in one place each: every one has to be rejected. Together
// with verify_{order,collective,content}_mutation_test.cpp, which break plans that communicate through
// collectives.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "shingle/planner/planner.hpp"
#include "support/mutation.hpp"
#include "support/random_problem.hpp"

namespace shingle::verify_peer_mutation_test {
namespace {

using namespace test;

FusedParams chosen(const Plan& plan) {
  return std::get<FusedParams>(params_of(plan));
}

/// Ranks whose rows other ranks' tiles and sums go to, by their owner.
bool sums_shards(const Plan& plan) {
  return plan.problem().traits().reduces() && !chosen(plan).one_shot;
}

bool any_gemm(const At&, const Gemm&) {
  return true;
}
bool any_sum(const At&, const Elementwise& pass) {
  return pass.from.size() > 1;
}

/// A rank touches a peer's memory although that may still be in the last epoch. (An allreduce by shards does
/// not need to ask: whoever has all sums of the last epoch knows that all regions have been read; nor does an
/// mlp, but to fetch what is the user's.)
bool drop_begun(Plan& plan, Dice& dice) {
  if (plan.problem().op == Op::gemm_allreduce && sums_shards(plan)) return false;
  if (plan.problem().op == Op::mlp && !chosen(plan).pull) return false;
  const auto at = pick<Await>(plan, dice, [&](const At&, const Await& await) {
    return counter_name(plan, await.counter) == "begun";
  });
  if (at) remove_step(plan, *at);
  return at.has_value();
}

bool forget_to_say_begun(Plan& plan, Dice& dice) {
  const auto at = pick<Notify>(plan, dice, [&](const At&, const Notify& notify) {
    return counter_name(plan, notify.counter) == "begun";
  });
  if (at) remove_step(plan, *at);
  return at.has_value();
}

/// Whether rows that a GEMM needs are moved by its own lane, which then knows of the own ones without a gate.
bool moves_rows_itself(const Plan& plan) {
  const FusedParams params = chosen(plan);
  return params.helpers == 0 && (plan.problem().traits().routes() || params.mover == Mover::store);
}

/// Whether tiles await several pieces, of which the later ones may come behind the others. A gate is then not
/// needed by itself.
bool awaits_several_pieces(const Plan& plan) {
  return plan.problem().row_order == RowOrder::block_cyclic;
}

bool drop_gate(Plan& plan, Dice& dice) {
  if (moves_rows_itself(plan) || awaits_several_pieces(plan)) return false;
  return change<Gemm>(
             plan, dice, [](const At&, const Gemm& g) { return !g.gates.empty(); },
             [](Gemm& g) { g.gates.erase(g.gates.begin()); }) ||
         change<Elementwise>(
             plan, dice, [](const At&, const Elementwise& e) { return !e.gates.empty() && e.queue < 0; },
             [](Elementwise& e) { e.gates.clear(); });
}

bool lower_gate(Plan& plan, Dice& dice) {
  if (moves_rows_itself(plan) || awaits_several_pieces(plan)) return false;
  std::size_t group = 0;
  return change<Gemm>(
      plan, dice,
      [&](const At&, const Gemm& g) {
        if (g.gates.empty()) return false;
        const auto& targets = g.gates[0].targets;
        for (group = 0; group < targets.size(); ++group)
          if (targets[group] > 0) return true;
        return false;
      },
      [&](Gemm& g) {
        const auto& targets = g.gates[0].targets;
        for (group = 0; targets[group] == 0;) ++group;
        g.gates[0].targets[group] = 0;
      });
}

bool gated_sum(const At& at, const Elementwise& pass) {
  return any_sum(at, pass) && !pass.gates.empty();
}

/// Tiles are awaited of one source less than there are: at the gate of a sum, or in front of it.
bool await_fewer_sources(Plan& plan, Dice& dice) {
  const auto at = pick<Elementwise>(plan, dice, gated_sum);
  if (!at)
    return pick<Elementwise>(plan, dice, any_sum) &&
           change<Await>(
               plan, dice, [&](const At&, const Await& await) { return await.target > 1; },
               [](Await& await) { --await.target; });
  for (Lane& lane : plan.ranks[static_cast<std::size_t>(at->rank)].lanes)
    for (Step& step : lane.steps)
      if (auto* pass = std::get_if<Elementwise>(&step); pass && pass->from.size() > 1)
        for (std::uint32_t& target : pass->gates[0].targets) target = target > 0 ? target - 1 : 0;
  return true;
}

/// The same change on every step of a rank's shared pass, so that they remain one pass.
bool change_sums(Plan& plan, Dice& dice, const std::function<void(Elementwise&)>& spoil) {
  const auto at = pick<Elementwise>(plan, dice, any_sum);
  if (!at || moves_nothing(plan, step_of(plan, *at))) return false;
  for (Lane& lane : plan.ranks[static_cast<std::size_t>(at->rank)].lanes)
    for (Step& step : lane.steps)
      if (auto* pass = std::get_if<Elementwise>(&step); pass && pass->from.size() > 1) spoil(*pass);
  return true;
}

bool forget_source(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [](Elementwise& pass) { pass.from.pop_back(); });
}

bool sum_source_twice(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [](Elementwise& pass) { pass.from.push_back(pass.from[0]); });
}

bool read_other_region(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [](Elementwise& pass) { pass.from[0].slice = pass.from[1].slice; });
}

/// Two lanes do the pass, each for itself.
bool do_queue_twice(Plan& plan, Dice& dice) {
  const auto at = pick<Elementwise>(plan, dice, any_sum);
  if (!at || chosen(plan).helpers == 0 || moves_nothing(plan, step_of(plan, *at))) return false;
  for (Lane& lane : plan.ranks[static_cast<std::size_t>(at->rank)].lanes)
    for (Step& step : lane.steps)
      if (auto* pass = std::get_if<Elementwise>(&step)) pass->queue = -1;
  return true;
}

bool store_to_next_owner(Plan& plan, Dice& dice) {
  if (!sums_shards(plan)) return false;
  return change<Gemm>(
      plan, dice,
      [](const At&, const Gemm& g) { return std::holds_alternative<placement::Owners>(g.out.form); },
      [](Gemm& g) {
        RowMap& rows = std::get<placement::Owners>(g.out.form).rows;
        rows.base += rows.stride;
      });
}

bool store_into_neighbours_region(Plan& plan, Dice& dice) {
  if (!plan.problem().traits().reduces()) return false;
  return change<Gemm>(
      plan, dice, [](const At&, const Gemm& g) { return g.out.slice.row > 0; },
      [](Gemm& g) { g.out.slice.row -= g.out.slice.rows; });
}

/// Tiles are counted on another rank than the one that they are stored on.
bool count_on_wrong_owner(Plan& plan, Dice& dice) {
  return change<Gemm>(
      plan, dice,
      [](const At&, const Gemm& g) {
        return !g.notify.empty() && std::ranges::adjacent_find(g.notify[0].owners, std::not_equal_to<>{}) !=
                                        g.notify[0].owners.end();
      },
      [](Gemm& g) { std::ranges::rotate(g.notify[0].owners, g.notify[0].owners.begin() + 1); });
}

bool count_nothing(Plan& plan, Dice& dice) {
  return change<Gemm>(
      plan, dice, [](const At&, const Gemm& g) { return !g.notify.empty() && g.grid.tiles() > 0; },
      [](Gemm& g) { g.notify.clear(); });
}

/// One rank does not get what all should.
bool leave_one_out(Plan& plan, Dice& dice) {
  if (plan.problem().op != Op::gemm_allreduce) return false;
  if (chosen(plan).one_shot)
    return change<Gemm>(plan, dice, any_gemm,
                        [](Gemm& g) { std::get<placement::Matrix>(g.out.form).ranks.pop_back(); });
  return change_sums(plan, dice,
                     [](Elementwise& pass) { std::get<placement::Matrix>(pass.to.form).ranks.pop_back(); });
}

/// A helper awaits that there is something to sum before it comes; what it sums is gated anyway.
bool comes_to_help(const Plan& plan, const At& at) {
  const auto& steps = lane_of(plan, at).steps;
  const auto next = static_cast<std::size_t>(at.step) + 1;
  const auto* pass = next < steps.size() ? std::get_if<Elementwise>(&steps[next]) : nullptr;
  return pass != nullptr && pass->queue >= 0 && !pass->gates.empty();
}

bool drop_last_awaits(Plan& plan, Dice& dice) {
  const auto at = pick<Await>(plan, dice, [&](const At& where, const Await& await) {
    if (comes_to_help(plan, where)) return false;
    const std::string& name = counter_name(plan, await.counter);
    if (name == "stored") return await.counter.entry != where.rank;  // what a lane has stored itself it knows
    const bool for_all = plan.problem().op == Op::gemm_allreduce && sums_shards(plan);
    if (name == "summed" && (for_all || chosen(plan).sums == SumsIn::epilogue))
      return await.counter.entry != where.rank;  // the epoch ends after the own sums anyway
    return name == "summed" || name == "fetched";
  });
  if (at) remove_step(plan, *at);
  return at.has_value();
}

bool drop_copy(Plan& plan, Dice& dice) {
  const auto at = pick<Copy>(plan, dice, [](const At&, const Copy& copy) { return copy.from.rows > 0; });
  if (at) remove_step(plan, *at);
  return at.has_value();
}

bool notify_before_copy(Plan& plan, Dice& dice) {
  const auto behind = [&](const At& at) { return At{at.rank, at.lane, at.step + 1}; };
  const auto at = pick<Copy>(plan, dice, [&](const At& copy, const Copy&) {
    return static_cast<std::size_t>(copy.step) + 1 < lane_of(plan, copy).steps.size() &&
           std::holds_alternative<Notify>(step_of(plan, behind(copy)));
  });
  if (at) std::swap(step_of(plan, *at), step_of(plan, behind(*at)));
  return at.has_value();
}

bool shift_copy(Plan& plan, Dice& dice) {
  return change<Copy>(
      plan, dice, [](const At&, const Copy& copy) { return copy.to.row > 0 && copy.to.rows > 0; },
      [](Copy& copy) { --copy.to.row; });
}

bool copy_to_other_rank(Plan& plan, Dice& dice) {
  const int world = plan.world();
  return change<Copy>(
      plan, dice, [](const At&, const Copy&) { return true; },
      [&](Copy& copy) { copy.to.rank = (copy.to.rank + 1) % world; });
}

bool push_elsewhere(Plan& plan, Dice& dice) {
  if (plan.problem().op != Op::alltoall_gemm) return false;
  return change<Elementwise>(
      plan, dice,
      [](const At&, const Elementwise& e) { return std::holds_alternative<placement::Routed>(e.to.form); },
      [](Elementwise& e) { ++std::get<placement::Routed>(e.to.form).bases[0]; });
}

bool route_elsewhere(Plan& plan, Dice& dice) {
  if (plan.problem().op != Op::gemm_alltoall) return false;
  return change<Gemm>(plan, dice, any_gemm, [](Gemm& g) {
    auto& bases = std::get<placement::Routed>(g.out.form).bases;
    std::swap(bases[0], bases[1]);
  });
}

/// One rank sums its sources in another order. (Two have none.)
bool reverse_sources(Plan& plan, Dice& dice) {
  if (plan.world() < 3) return false;
  return change_sums(plan, dice, [](Elementwise& pass) { std::ranges::reverse(pass.from); });
}

/// Parts are said to travel in another type than they do.
bool forge_staging(Plan& plan, Dice&) {
  if (!plan.problem().traits().reduces() || plan.dtype() == DType::f32) return false;
  const std::string type(name(plan.dtype()));
  const auto swapped = [&](const std::string& from, const std::string& to) {
    const std::string before = "rounded once to " + from + " for their way";
    const auto at = plan.rounding.find(before);
    if (at != std::string::npos)
      plan.rounding.replace(at, before.size(), "rounded once to " + to + " for their way");
    return at != std::string::npos;
  };
  return swapped(type, "f32") || swapped("f32", type);
}

bool exceed_workers(Plan& plan, Dice& dice) {
  const std::int32_t workers = plan.workers;
  return change<Gemm>(
             plan, dice, [](const At&, const Gemm& g) { return !g.gates.empty(); },
             [&](Gemm& g) { g.resources = {1, workers + 1}; }) ||
         change<Elementwise>(plan, dice, gated_sum, [&](Elementwise& e) { e.resources = {1, workers + 1}; });
}

const Mutation mutations[] = {{"drop an await of a peer's begin", drop_begun},
                              {"forget to say that the epoch has begun", forget_to_say_begun},
                              {"drop a gate", drop_gate},
                              {"lower a gate", lower_gate},
                              {"await fewer sources", await_fewer_sources},
                              {"forget a source", forget_source},
                              {"sum a source twice", sum_source_twice},
                              {"read another source's region", read_other_region},
                              {"do a shared pass twice", do_queue_twice},
                              {"store to the next owner", store_to_next_owner},
                              {"store into the neighbour's region", store_into_neighbours_region},
                              {"count on the wrong owner", count_on_wrong_owner},
                              {"count nothing", count_nothing},
                              {"leave one rank out", leave_one_out},
                              {"drop an await at the end", drop_last_awaits},
                              {"drop a copy", drop_copy},
                              {"notify before the copy", notify_before_copy},
                              {"shift a copy", shift_copy},
                              {"copy to another rank", copy_to_other_rank},
                              {"push rows elsewhere", push_elsewhere},
                              {"route rows elsewhere", route_elsewhere},
                              {"reverse the sources of a sum", reverse_sources},
                              {"forge what parts are rounded to", forge_staging},
                              {"exceed the workers", exceed_workers}};

/// A correct plan in which every rank has rows for every other.
std::optional<Plan> random_plan(Dice& dice) {
  Problem p = random_problem(dice, {.world = 5, .m = 60, .n = 30, .k = 10, .experts = false});
  if (p.world == 1 || p.op == Op::gemm) return std::nullopt;
  if (p.traits().routes()) {
    for (int s = 0; s < p.world; ++s)
      for (int d = 0; d < p.world; ++d)
        if (p.routing->count(s, d) == 0) return std::nullopt;
  } else if (p.m <= p.world * (p.world - 1)) {
    return std::nullopt;
  }
  Machine machine = random_machine(dice);
  machine.workers += 2;
  auto plan = plan_fused(p, machine, std::get<FusedParams>(random_params(dice, p, Mechanism::fused)));
  if (!plan) return std::nullopt;
  return *plan;
}

class PeerMutations : public testing::TestWithParam<Mutation> {};

TEST_P(PeerMutations, AreAllCaught) {
  expect_caught(GetParam(), random_plan);
}

INSTANTIATE_TEST_SUITE_P(Verify, PeerMutations, testing::ValuesIn(mutations), mutation_name);

}  // namespace
}  // namespace shingle::verify_peer_mutation_test
