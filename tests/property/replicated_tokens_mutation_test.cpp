// Plans of tokens that all ranks have, wrong in one place, are refused.
#include <gtest/gtest.h>

#include "shingle/plan/placement.hpp"
#include "shingle/planner/planner.hpp"
#include "support/mutations.hpp"
#include "support/small_experts.hpp"

namespace shingle::replicated_tokens_mutation_test {
namespace {

using test::expect_pass_refused;
using test::expect_refused;

constexpr Op operators[] = {Op::grouped_gemm_allreduce, Op::moe_allreduce};

/// In strips of columns, with helpers and without, of a routing that the host or the device knows.
std::vector<Plan> plans(Op op) {
  Machine machine;
  machine.workers = 8, machine.collective_workers = 1;
  const TileParams tile{.rows = 4, .cols = 3};
  Problem slots = test::experts(op);
  slots.experts.capacity = 5;
  std::vector<Plan> all;
  for (const Problem& problem : {test::experts(op), with_m(slots, 8)}) {
    all.push_back(plan_sequential(problem, machine, {}).value());
    all.push_back(
        plan_signal(problem, machine, {.tile = tile, .group_waves = {1, 2, 1}, .helpers = 2}).value());
    for (const bool one_shot : {false, true}) {
      all.push_back(plan_fused(problem, machine, {.tile = tile, .helpers = 2, .one_shot = one_shot}).value());
      all.push_back(
          plan_fused(problem, machine, {.helpers = FusedParams::no_helpers, .one_shot = one_shot}).value());
    }
  }
  return all;
}

bool sums_choices(const Elementwise& pass) {
  return pass.factors.buffer >= 0;
}
bool in_strips(const Plan& plan) {
  for (const Lane& lane : plan.ranks.front().lanes)
    for (const Step& step : lane.steps)
      if (const auto* const pass = std::get_if<Elementwise>(&step); pass != nullptr && sums_choices(*pass))
        return pass->grid.cols < plan.problem().n;
  return false;
}

/// Tiles that count in an entry of a counter.
std::uint32_t tiles_of_strip(const Plan& plan, std::int32_t counter, std::int32_t entry) {
  return plan.counters[static_cast<std::size_t>(counter)].growth.front()[static_cast<std::size_t>(entry)];
}

TEST(WrongReplicatedTokens, ColumnsOfAnotherStrip) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      if (!in_strips(plan)) continue;
      // The pass also awaits the strip before, so that nothing but the columns is wrong.
      for (const std::size_t wrong : {std::size_t{0}, std::size_t{1}, std::size_t{2}})
        expect_pass_refused(plan, "content", [&](Elementwise& pass) {
          if (!sums_choices(pass) || pass.from.front().slice.col == 0) return false;
          const std::int64_t cols = pass.grid.cols;
          for (std::size_t choice = 0; choice < pass.from.size(); ++choice)
            if (wrong == choice || wrong == 2)
              pass.from[choice].slice.col -= smaller(cols, pass.from[choice].slice.col);
          TileGate before = pass.gates.front();
          --before.entries.front();
          before.targets.front() = tiles_of_strip(plan, before.counter, before.entries.front());
          pass.gates.push_back(before);
          return true;
        });
      if (plan.mechanism != Mechanism::fused) continue;  // signal has a buffer for each strip
      expect_pass_refused(plan, "", [](Elementwise& pass) {
        if (!sums_choices(pass)) return false;
        pass.to.slice.col = pass.to.slice.col == 0 ? 3 : pass.to.slice.col - 3;
        return true;
      });
    }
}

TEST(WrongReplicatedTokens, SumsBeforeTheirProducts) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      if (!in_strips(plan)) continue;
      expect_pass_refused(plan, "race", [](Elementwise& pass) {
        if (!sums_choices(pass)) return false;
        --pass.gates.front().targets.front();
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& g) {  // counted with another strip
        if (g.notify.empty()) return false;
        --g.notify.front().ends.front();
        return true;
      });
    }
}

TEST(WrongReplicatedTokens, ChoicesOfOthers) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_pass_refused(plan, "", [](Elementwise& pass) {
        if (!sums_choices(pass)) return false;
        pass.from[1] = pass.from[0];
        return true;
      });
      expect_pass_refused(plan, "", [](Elementwise& pass) {
        if (!sums_choices(pass)) return false;
        ++pass.factors.row, --pass.factors.rows, --pass.grid.rows;
        return true;
      });
    }
}

/// The sum over ranks lacks one of them, or has one twice.
TEST(WrongReplicatedTokens, SumsOfSomeRanks) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      if (plan.mechanism == Mechanism::fused) {
        expect_pass_refused(plan, "", [](Elementwise& pass) {
          if (pass.from.size() != 3) return false;
          pass.from[1] = pass.from[0];
          return true;
        });
        expect_pass_refused(plan, "", [](Elementwise& pass) {
          if (pass.from.size() != 3) return false;
          pass.from.pop_back();
          return true;
        });
      } else {
        expect_refused<Collective>(plan, "", [](Collective& c) {
          c.kind = CollectiveKind::allgather;
          return true;
        });
      }
    }
}

/// A routing of one source has no rows of another.
TEST(WrongReplicatedTokens, RowsOfAnotherSource) {
  for (const Op op : operators)
    expect_pass_refused(plans(op).front(), "well-formed", [](Elementwise& pass) {
      bool edited = false;
      for (Placement& from : pass.from)
        if (auto* const pools = std::get_if<placement::Pools>(&from.form)) pools->source = 1, edited = true;
      return edited;
    });
}

}  // namespace
}  // namespace shingle::replicated_tokens_mutation_test
