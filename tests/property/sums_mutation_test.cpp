// Plans whose own tiles are sums, broken in one place each: every one has to be rejected.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "shingle/plan/rounding.hpp"
#include "shingle/planner/planner.hpp"
#include "support/mutation.hpp"
#include "support/random_problem.hpp"

namespace shingle::sums_mutation_test {
namespace {

using namespace test;

bool change_sums(Plan& plan, Dice& dice, const std::function<void(Gemm&)>& spoil) {
  return change<Gemm>(plan, dice, [](const At&, const Gemm& g) { return !g.sums.from.empty(); }, spoil);
}
std::size_t any_of(Dice& dice, std::size_t count) {
  return static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(count) - 1));
}

bool forget_part(Plan& plan, Dice& dice) {
  return plan.world() > 2 && change_sums(plan, dice, [&](Gemm& g) {
           g.sums.from.erase(g.sums.from.begin() +
                             static_cast<std::ptrdiff_t>(any_of(dice, g.sums.from.size())));
         });
}

bool add_part_twice(Plan& plan, Dice& dice) {
  return change_sums(plan, dice,
                     [&](Gemm& g) { g.sums.from.push_back(g.sums.from[any_of(dice, g.sums.from.size())]); });
}

/// In f32 any term of an all-reduce's sum may be the owner's, as none is rounded.
bool swap_parts(Plan& plan, Dice& dice) {
  if (plan.dtype() == DType::f32 && plan.problem().op == Op::gemm_allreduce) return false;
  return plan.world() > 2 && change_sums(plan, dice, [&](Gemm& g) {
           const std::size_t first = any_of(dice, g.sums.from.size() - 1);
           std::swap(g.sums.from[first], g.sums.from[first + 1]);
         });
}

bool read_the_own_region(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [](Gemm& g) { g.sums.from[0].slice.row = g.out.slice.row; });
}

bool shift_part(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [&](Gemm& g) {
    Slice& slice = g.sums.from[any_of(dice, g.sums.from.size())].slice;
    slice.row += slice.row > 0 ? -1 : 1;
  });
}

/// Of a group with rows: nobody misses a part of padding.
bool lower_gate(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [&](Gemm& g) {
    std::vector<std::uint32_t*> targets;
    TileGate& gate = g.gates.back();
    for (std::size_t group = 0; group < gate.ends.size(); ++group)
      for (std::int64_t at = group == 0 ? 0 : gate.ends[group - 1]; at < gate.ends[group]; ++at)
        if (gate.targets[group] > 0 && is_sum(g, g.grid.rect(g.grid.tile(at)).row)) {
          targets.push_back(&gate.targets[group]);
          break;
        }
    --*targets[any_of(dice, targets.size())];
  });
}

bool drop_gate(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [](Gemm& g) { g.gates.pop_back(); });
}

bool await_another_band(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [](Gemm& g) {
    TileGate& gate = g.gates.back();
    for (std::size_t group = 0; group < gate.entries.size(); ++group)
      if (gate.targets[group] > 0) gate.entries[group] = (gate.entries[group] + 1) % 2;
  });
}

bool store_to_other_rows(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [](Gemm& g) {
    for (Placement& to : g.sums.to) std::get<placement::Matrix>(to.form).rows.base += 1;
  });
}

bool store_to_one_rank_less(Plan& plan, Dice& dice) {
  return plan.problem().op == Op::gemm_allreduce && change_sums(plan, dice, [](Gemm& g) {
           auto& ranks = std::get<placement::Matrix>(g.sums.to.back().form).ranks;
           if (ranks.size() > 1)
             ranks.pop_back();
           else
             g.sums.to.pop_back();
         });
}

/// Sums of several places: the own output, and memory of the peers.
bool change_places(Plan& plan, Dice& dice, const std::function<void(Gemm&)>& spoil) {
  return change<Gemm>(plan, dice, [](const At&, const Gemm& g) { return g.sums.to.size() > 1; }, spoil);
}

bool store_to_one_place_less(Plan& plan, Dice& dice) {
  return change_places(plan, dice, [&](Gemm& g) {
    g.sums.to.erase(g.sums.to.begin() + static_cast<std::ptrdiff_t>(any_of(dice, g.sums.to.size())));
  });
}

bool shift_a_place(Plan& plan, Dice& dice) {
  return change_places(plan, dice, [&](Gemm& g) {
    Slice& slice = g.sums.to[any_of(dice, g.sums.to.size())].slice;
    slice.row += slice.row > 0 ? -1 : 1;
  });
}

bool store_to_peers_outputs(Plan& plan, Dice& dice) {
  return change_places(plan, dice,
                       [](Gemm& g) { g.sums.to.back().slice.buffer = g.sums.to.front().slice.buffer; });
}

/// The pass that copies other ranks' sums to the output.
bool change_fills(Plan& plan, Dice& dice, const std::function<void(Elementwise&)>& spoil) {
  const auto fills = [](const Elementwise& pass) {
    const auto* const at = std::get_if<placement::Matrix>(&pass.to.form);
    return at != nullptr && at->rows.without >= 0;
  };
  return change<Elementwise>(
      plan, dice, [&](const At&, const Elementwise& pass) { return fills(pass); }, spoil);
}

bool fill_the_own_rows_too(Plan& plan, Dice& dice) {
  return change_fills(plan, dice, [](Elementwise& pass) {
    for (Placement* at : {&pass.from.front(), &pass.to}) {
      RowMap& rows = std::get<placement::Matrix>(at->form).rows;
      rows.without = rows.without > 0 ? rows.without - 1 : rows.without + 1;
    }
  });
}

bool fill_other_rows(Plan& plan, Dice& dice) {
  return change_fills(plan, dice, [](Elementwise& pass) {
    RowMap& rows = std::get<placement::Matrix>(pass.from.front().form).rows;
    rows.without = rows.without > 0 ? rows.without - 1 : rows.without + 1;
  });
}

bool fill_too_early(Plan& plan, Dice& dice) {
  return change_fills(plan, dice, [](Elementwise& pass) {
    for (std::uint32_t& target : pass.gates.front().targets) target -= target > 0 ? 1 : 0;
  });
}

bool say_the_pass_rounds(Plan& plan, Dice&) {
  if (plan.world() == 2 && plan.dtype() == DType::f32) return false;  // two have no order
  plan.rounding = sentence(plan.work, {Summing::rank_order, plan.dtype()});
  return true;
}

bool finish_parts(Plan& plan, Dice& dice) {
  return change<Gemm>(
      plan, dice, [](const At&, const Gemm& g) { return !g.sums.from.empty() && g.epilogue.any(); },
      [](Gemm& g) {
        g.sums = {};
        g.gates.pop_back();
      });
}

bool count_sums_as_parts(Plan& plan, Dice& dice) {
  return change_sums(plan, dice, [](Gemm& g) {
    TileNotify& stored = g.notify.front();
    for (std::int32_t& entry : stored.entries) entry = std::max(entry, 0);
  });
}

const Mutation mutations[] = {{"forget a part", forget_part},
                              {"add a part twice", add_part_twice},
                              {"swap two parts", swap_parts},
                              {"read the own region", read_the_own_region},
                              {"shift a part", shift_part},
                              {"lower a gate of parts", lower_gate},
                              {"drop the gate of parts", drop_gate},
                              {"await another band", await_another_band},
                              {"store sums to other rows", store_to_other_rows},
                              {"store sums to one rank less", store_to_one_rank_less},
                              {"store sums to one place less", store_to_one_place_less},
                              {"shift a place of sums", shift_a_place},
                              {"store sums to outputs of peers", store_to_peers_outputs},
                              {"fill own rows too", fill_the_own_rows_too},
                              {"fill other rows", fill_other_rows},
                              {"fill too early", fill_too_early},
                              {"say that a pass sums", say_the_pass_rounds},
                              {"finish parts", finish_parts},
                              {"count own tiles as parts", count_sums_as_parts}};

/// A correct plan in which every rank has rows.
std::optional<Plan> random_plan(Dice& dice) {
  Problem p = random_problem(dice, {.world = 5, .m = 60, .n = 30, .k = 10, .experts = false});
  p.op = one_of(dice, {Op::gemm_reducescatter, Op::gemm_allreduce});
  p.routing = nullptr;
  p.row_order = RowOrder::contiguous, p.row_block = 0;
  p.inner = 0, p.f32_sums = false, p.epilogue.scale = 1;
  if (p.epilogue.activation == Activation::swiglu) p.n += p.n % 2;
  if (p.world == 1 || p.m <= p.world * (p.world - 1)) return std::nullopt;
  Machine machine = random_machine(dice);
  machine.workers += 2;
  auto params = std::get<FusedParams>(random_params(dice, p, Mechanism::fused));
  params.sums = SumsIn::epilogue;
  params.stage_fp32 = params.one_shot = false;
  auto plan = plan_fused(p, machine, params);
  if (!plan) return std::nullopt;
  return *plan;
}

class SumsMutations : public testing::TestWithParam<Mutation> {};

TEST_P(SumsMutations, AreAllCaught) {
  expect_caught(GetParam(), random_plan);
}

INSTANTIATE_TEST_SUITE_P(Verify, SumsMutations, testing::ValuesIn(mutations), mutation_name);

}  // namespace
}  // namespace shingle::sums_mutation_test
