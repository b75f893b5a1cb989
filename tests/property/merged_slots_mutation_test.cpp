// Plans of merged slots that are wrong in one place are refused.
#include <gtest/gtest.h>

#include <string_view>

#include "shingle/plan/placement.hpp"
#include "shingle/planner/planner.hpp"
#include "support/mutations.hpp"
#include "support/random_problem.hpp"

namespace shingle::merged_slots_mutation_test {
namespace {

using test::expect_refused;

constexpr Op operators[] = {Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp};
constexpr int ranks = 3, experts = 4, capacity = 5, tokens = 8;

std::vector<Plan> plans(Op op) {
  Problem problem{.op = op, .world = ranks, .n = 12, .k = 10, .experts = {experts, 2, capacity}};
  if (problem.traits().chains()) problem.inner = 14;
  problem = with_m(problem, tokens);
  Machine machine;
  machine.workers = 8, machine.collective_workers = 1;
  return {plan_sequential(problem, machine, {.slots = SlotOrder::merged}).value(),
          plan_fused(problem, machine, {.slots = SlotOrder::merged}).value()};
}

bool is(const Plan& plan, const Slice& slice, std::string_view name) {
  return slice.buffer >= 0 && plan.buffers[static_cast<std::size_t>(slice.buffer)].name == name;
}
std::int32_t buffer(const Plan& plan, std::string_view name) {
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].name == name) return static_cast<std::int32_t>(i);
  return -1;
}

/// Passes that pick rows by an index, changed one after the other.
void expect_picks_refused(const Plan& plan, const std::string& rule,
                          const std::function<bool(Elementwise&, Slice&)>& edit) {
  test::expect_pass_refused(plan, rule, [&](Elementwise& pass) {
    auto* const picked = std::get_if<placement::Indexed>(&pass.from.front().form);
    return picked != nullptr && edit(pass, picked->index);
  });
}

TEST(WrongMergedSlots, MergedOfOthers) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_refused<MergeSlots>(plan, "well-formed", [](MergeSlots& m) { return ++m.capacity > 0; });
      expect_refused<MergeSlots>(plan, "well-formed", [](MergeSlots& m) { return --m.counts.rows > 0; });
      expect_refused<MergeSlots>(plan, "well-formed", [](MergeSlots& m) {
        m.live = m.counts, m.live.rows = 1;
        return true;
      });
      expect_refused<MergeSlots>(plan, "well-formed", [](MergeSlots& m) {
        m.live = {};
        return true;
      });
      // An index that nothing makes, and one in place of another.
      expect_refused<MergeSlots>(plan, "content", [](MergeSlots& m) {
        (m.token_of.buffer < 0 ? m.row_of : m.token_of) = {};
        return true;
      });
      expect_refused<MergeSlots>(plan, "content", [](MergeSlots& m) {
        std::swap(m.token_of, m.row_of);
        return true;
      });
    }
}

TEST(WrongMergedSlots, BeforeAllRanksAreThere) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_refused<Await>(plan, "", [&](Await& await) {
        const std::string& name = plan.counters[static_cast<std::size_t>(await.counter.counter)].name;
        if (name != "arrived") return false;
        --await.target;
        return true;
      });
      if (plan.mechanism != Mechanism::sequential) continue;
      expect_refused<Collective>(plan, "", [&](Collective& c) {
        if (!is(plan, c.send, "live") && !is(plan, c.send, "slot_of")) return false;
        c.send.row = (c.send.row + c.send.rows) % (ranks * c.send.rows);
        return true;
      });
    }
}

TEST(WrongMergedSlots, RowsOfSomeRanks) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_picks_refused(plan, "", [&](Elementwise& pass, Slice& index) {
        if (is(plan, index, "merged slot_of")) return false;
        --pass.from.front().slice.rows;
        return true;
      });
      expect_picks_refused(plan, "", [&](Elementwise& pass, Slice& index) {
        if (pass.from.size() > 1) return false;
        ++index.row, --index.rows, --pass.grid.rows, --pass.to.slice.rows;
        pass.to.form = placement::Matrix{RowMap::identity(pass.to.slice.rows)};
        return true;
      });
    }
}

/// Slots of one rank do not tell where its rows are among those of all ranks.
TEST(WrongMergedSlots, IndicesOfOneRank) {
  for (const Op op : {Op::grouped_gemm_reducescatter, Op::moe_tp})
    for (const Plan& plan : plans(op))
      test::expect_pass_refused(plan, "content", [&](Elementwise& pass) {
        bool edited = false;
        for (Placement& from : pass.from)
          if (auto* const picked = std::get_if<placement::Indexed>(&from.form))
            if (is(plan, picked->index, "merged slot_of")) {
              picked->index.buffer = buffer(plan, "slot_of");
              edited = true;
            }
        return edited;
      });
}

TEST(WrongMergedSlots, CountsOfOthers) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_refused<Gemm>(plan, "content", [](Gemm& g) {
        g.groups.front().live ^= 1;  // another expert
        return true;
      });
      // The counts of a rank: its group's rows are right if all slots are full, but only then.
      expect_refused<Gemm>(plan, "content", [&](Gemm& g) {
        g.live.buffer = buffer(plan, "live"), g.live.row = 0, g.live.rows = 1;
        return true;
      });
      expect_refused<Gemm>(plan, "content", [&](Gemm& g) {
        std::vector<RowGroup> groups;
        for (const RowGroup& group : g.groups)
          for (int source = 0; source < ranks; ++source) {
            RowGroup one = group;
            one.a_row += source * capacity, one.row += source * capacity, one.rows = capacity;
            one.live = source * experts + group.weight;
            groups.push_back(one);
          }
        g.live = whole(plan, buffer(plan, "live"), g.live.rank);
        g.groups = std::move(groups);
        g.grid = make_grid(padded_rows(g.groups, g.grid.tile_rows, g.group_tiles), g.grid.cols,
                           g.grid.tile_rows, g.grid.tile_cols);
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        RowGroup& group = g.groups.front();
        ++group.a_row, ++group.row, --group.rows;
        return true;
      });
    }
}

}  // namespace
}  // namespace shingle::merged_slots_mutation_test
